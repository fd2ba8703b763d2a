// Attention within patches of points along an order, and its gradient.
//
// A task computes one head of one unit: a patch, together with the incomplete patch after it, if there is one, which
// shares its keys. No two tasks share a key, so results do not depend on how the work is divided. Rows are copied into
// matrices of floats, and logits are held for a few queries at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "clouds.h"
#include "exponential.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kQueries = 32;  // queries whose logits are held
constexpr int64_t kPieces = 16;   // pieces of work for each thread

template <class W> struct Vector {
  static constexpr int kLanes = 64 / sizeof(W);
  typedef W type __attribute__((vector_size(64)));
  typedef W unaligned __attribute__((vector_size(64), aligned(sizeof(W)), may_alias));
  static POINTGRAD_INLINE void load(type& to, const W* from) { to = *reinterpret_cast<const unaligned*>(from); }
  static POINTGRAD_INLINE void store(W* to, const type& value) { *reinterpret_cast<unaligned*>(to) = value; }
};

// A matrix whose element (r, c) is data[r * row + c * column].
template <class W> struct Matrix {
  const W* data;
  int64_t row, column;
};

template <int kRows, int kVectors, class W>
POINTGRAD_INLINE void multiply_tile(W* out, int64_t stride, const Matrix<W>& a, const W* b, int64_t b_stride,
                                    int64_t depth, bool add) {
  using V = Vector<W>;
  typename V::type sum[kRows][kVectors] = {};
  if (add) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) V::load(sum[r][v], out + r * stride + v * V::kLanes);
  }
  for (int64_t k = 0; k < depth; ++k) {
    typename V::type line[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) V::load(line[v], b + k * b_stride + v * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const W value = a.data[r * a.row + k * a.column];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] += value * line[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) V::store(out + r * stride + v * V::kLanes, sum[r][v]);
}

template <int kVectors, class W>
POINTGRAD_INLINE void multiply_columns(W* out, int64_t stride, Matrix<W> a, const W* b, int64_t b_stride, int64_t rows,
                                       int64_t depth, bool add) {
  const auto advance = [&](int64_t count) {
    out += count * stride;
    a.data += count * a.row;
    rows -= count;
  };
  for (; rows >= 8; advance(8)) multiply_tile<8, kVectors>(out, stride, a, b, b_stride, depth, add);
  if (rows >= 4) multiply_tile<4, kVectors>(out, stride, a, b, b_stride, depth, add), advance(4);
  if (rows >= 2) multiply_tile<2, kVectors>(out, stride, a, b, b_stride, depth, add), advance(2);
  if (rows >= 1) multiply_tile<1, kVectors>(out, stride, a, b, b_stride, depth, add);
}

// out (rows, columns) = or += a (rows, depth) @ b (depth, columns). Columns are filled up to whole vectors.
template <class W>
POINTGRAD_CLONES void multiply(W* out, int64_t stride, const Matrix<W>& a, const W* b, int64_t b_stride, int64_t rows,
                               int64_t depth, int64_t columns, bool add) {
  constexpr int64_t kLanes = Vector<W>::kLanes;
  int64_t c = 0;
  for (; c + kLanes < columns; c += 2 * kLanes) multiply_columns<2>(out + c, stride, a, b + c, b_stride, rows, depth, add);
  if (c < columns) multiply_columns<1>(out + c, stride, a, b + c, b_stride, rows, depth, add);
}

// Replaces logits by e^(logit - top), where `top` is the largest, and returns their sum.
template <class W> POINTGRAD_CLONES W exponentials(W* __restrict logits, int64_t count, W* largest) {
  constexpr int kLanes = 16;
  W lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<W>::infinity());
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] = logits[j + l] > lanes[l] ? logits[j + l] : lanes[l];
  for (int64_t j = whole; j < count; ++j) lanes[0] = logits[j] > lanes[0] ? logits[j] : lanes[0];
  const W top = *largest = *std::max_element(lanes, lanes + kLanes);
  for (int64_t j = 0; j < count; ++j) logits[j] = exp_of_negative(logits[j] - top);
  std::fill(lanes, lanes + kLanes, W(0));
  for (int64_t j = 0; j < whole; j += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += logits[j + l];
  for (int64_t j = whole; j < count; ++j) lanes[j - whole] += logits[j];
  W total = 0;
  for (int l = 0; l < kLanes; ++l) total += lanes[l];
  return total;
}

// weights /= total, and slopes = weights * (slopes - sum(weights * slopes)).
template <class W> POINTGRAD_CLONES void slopes_of(W* __restrict slopes, W* __restrict weights, int64_t count, W total) {
  constexpr int kLanes = 16;
  const W inverse = 1 / total;
  W lanes[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t j = 0; j < count; ++j) weights[j] *= inverse;
  for (int64_t j = 0; j < whole; j += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += weights[j + l] * slopes[j + l];
  for (int64_t j = whole; j < count; ++j) lanes[j - whole] += weights[j] * slopes[j];
  W level = 0;
  for (int l = 0; l < kLanes; ++l) level += lanes[l];
  for (int64_t j = 0; j < count; ++j) slopes[j] = weights[j] * (slopes[j] - level);
}

// Consecutive places of one cloud that share keys: one patch, and the incomplete patch after it.
struct Unit {
  int64_t place, size;  // counted through all clouds
  int64_t first_row;    // first row of the cloud, to which the entries of the order are relative
  int64_t norm;         // where the places of the unit are in the norm of head 0
};

template <class T> struct Problem {
  const T *query, *key, *value, *table;  // the table may be null
  const int64_t *order, *coordinates;
  wide<T> scale;
  int64_t heads, depth, patch, bound, num_points;
  std::vector<Unit> units;

  int64_t table_rows() const { return 3 * (2 * bound + 1); }
};

template <class T>
Problem<T> problem(const Clouds& clouds, Input query, Input key, Input value, In<int64_t> order, int64_t patch,
                   In<int64_t> coordinates, Input table, int64_t bound, double scale, int64_t heads, int64_t depth) {
  Problem<T> p{query.as<T>(), key.as<T>(), value.as<T>(), table.as<T>(), order, coordinates,
               static_cast<wide<T>>(scale), heads, depth, patch, bound, clouds.num_points, {}};
  for (int64_t cloud = 0; cloud < clouds.batch; ++cloud) {
    const int64_t begin = clouds.begin(cloud), size = clouds.size(cloud), row = clouds.packed ? 0 : begin;
    const int64_t norm = clouds.packed ? begin : cloud * heads * clouds.num_points;
    for (int64_t at = 0; at < size;) {
      const int64_t count = size - at < 2 * patch ? size - at : patch;
      p.units.push_back({begin + at, count, row, norm + at});
      at += count;
    }
  }
  return p;
}

// The rows of one head of a unit, and the matrices made of them. Rows of matrices are padded to whole vectors.
template <class T> struct Head {
  using W = wide<T>;
  const Problem<T>& p;
  const Unit& unit;
  int64_t head, width, stride;  // number of the head; lengths of rows of channels and of rows of keys
  std::vector<W> biases;        // the column of the table

  Head(const Problem<T>& problem, int64_t task)
      : p(problem), unit(problem.units[task / problem.heads]), head(task % problem.heads) {
    constexpr int64_t kLanes = Vector<W>::kLanes;
    width = (p.depth + kLanes - 1) / kLanes * kLanes;
    stride = (unit.size + kLanes - 1) / kLanes * kLanes + kLanes;
    if (p.table == nullptr) return;
    for (int64_t row = 0; row < p.table_rows(); ++row) biases.push_back(widen(p.table[row * p.heads + head]));
  }

  int64_t row(int64_t place) const { return unit.first_row + p.order[unit.place + place]; }
  int64_t offset(int64_t place) const { return (row(place) * p.heads + head) * p.depth; }

  void copy(W* to, const T* from, int64_t begin, int64_t end, W factor = 1) const {
    for (int64_t place = begin; place < end; ++place, to += width) {
      const T* values = from + offset(place);
      for (int64_t c = 0; c < p.depth; ++c) to[c] = widen(values[c]) * factor;
    }
  }

  std::vector<W> rows(const T* from) const {
    std::vector<W> matrix(unit.size * width);
    copy(matrix.data(), from, 0, unit.size);
    return matrix;
  }

  std::vector<W> columns(const T* from) const {
    std::vector<W> matrix(p.depth * stride);
    for (int64_t place = 0; place < unit.size; ++place) {
      const T* values = from + offset(place);
      for (int64_t c = 0; c < p.depth; ++c) matrix[c * stride + place] = widen(values[c]);
    }
    return matrix;
  }

  void write(T* to, const W* from, int64_t begin, int64_t end, W factor = 1) const {
    for (int64_t place = begin; place < end; ++place, from += width) {
      T* values = to + offset(place);
      for (int64_t c = 0; c < p.depth; ++c) values[c] = narrow<T>(from[c] * factor);
    }
  }

  // Calls use(place of the key, rows of the table) for the keys [begin, end) of a query.
  template <class Use> void with_biases(int64_t query, int64_t begin, int64_t end, Use&& use) const {
    const int64_t* from = p.coordinates + 3 * row(query);
    for (int64_t j = begin; j < end; ++j) {
      const int64_t* to = p.coordinates + 3 * row(j);
      int64_t at[3];
      for (int axis = 0; axis < 3; ++axis) {
        const auto step = static_cast<int64_t>(static_cast<uint64_t>(from[axis]) - static_cast<uint64_t>(to[axis]));
        at[axis] = std::clamp(step, -p.bound, p.bound) + p.bound + axis * (2 * p.bound + 1);
      }
      use(j - begin, at);
    }
  }

  void add_biases(W* logits, int64_t query, int64_t begin, int64_t end) const {
    if (p.table == nullptr) return;
    with_biases(query, begin, end, [&](int64_t j, const int64_t* at) {
      logits[j] += biases[at[0]] + biases[at[1]] + biases[at[2]];
    });
  }

  // Calls body(queries begin, end, keys begin, end) for blocks of queries of the patches.
  template <class Body> void for_blocks(Body&& body) const {
    const int64_t first = std::min(p.patch, unit.size);
    for (int64_t q = 0; q < first; q += kQueries) body(q, std::min(q + kQueries, first), int64_t{0}, first);
    for (int64_t q = first; q < unit.size; q += kQueries)
      body(q, std::min(q + kQueries, unit.size), unit.size - p.patch, unit.size);
  }
};

template <class T> void attend(T* out, wide<T>* norm, const Problem<T>& p, int64_t task) {
  using W = wide<T>;
  const Head<T> h(p, task);
  const std::vector<W> keys = h.columns(p.key), values = h.rows(p.value);
  std::vector<W> queries(kQueries * h.width), logits(kQueries * h.stride), sums(kQueries * h.width);
  h.for_blocks([&](int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
    const int64_t rows = q1 - q0, count = k1 - k0;
    h.copy(queries.data(), p.query, q0, q1, p.scale);
    multiply<W>(logits.data(), h.stride, {queries.data(), h.width, 1}, keys.data() + k0, h.stride, rows, p.depth, count,
                false);
    W totals[kQueries];
    for (int64_t r = 0; r < rows; ++r) {
      W* line = logits.data() + r * h.stride;
      h.add_biases(line, q0 + r, k0, k1);
      W top;
      totals[r] = exponentials(line, count, &top);
      norm[h.unit.norm + h.head * p.num_points + q0 + r] = top + std::log(totals[r]);
    }
    multiply<W>(sums.data(), h.width, {logits.data(), h.stride, 1}, values.data() + k0 * h.width, h.width, rows, count,
                p.depth, false);
    for (int64_t r = 0; r < rows; ++r) h.write(out, sums.data() + r * h.width, q0 + r, q0 + r + 1, 1 / totals[r]);
  });
}

// The gradients of one head of a unit. `table_grad` has the sum for each row of the table.
template <class T>
void attend_backward(T* grad_query, T* grad_key, T* grad_value, wide<T>* table_grad, const T* grad, const Problem<T>& p,
                     int64_t task) {
  using W = wide<T>;
  const Head<T> h(p, task);
  const std::vector<W> key_rows = h.rows(p.key), keys = h.columns(p.key), values = h.columns(p.value);
  std::vector<W> key_sums(h.unit.size * h.width), value_sums(h.unit.size * h.width);
  std::vector<W> queries(kQueries * h.width), grads(kQueries * h.width), sums(kQueries * h.width);
  std::vector<W> weights(kQueries * h.stride), slopes(kQueries * h.stride);
  h.for_blocks([&](int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
    const int64_t rows = q1 - q0, count = k1 - k0;
    h.copy(queries.data(), p.query, q0, q1, p.scale);
    h.copy(grads.data(), grad, q0, q1);
    multiply<W>(weights.data(), h.stride, {queries.data(), h.width, 1}, keys.data() + k0, h.stride, rows, p.depth,
                count, false);
    multiply<W>(slopes.data(), h.stride, {grads.data(), h.width, 1}, values.data() + k0, h.stride, rows, p.depth, count,
                false);
    for (int64_t r = 0; r < rows; ++r) {
      W *weight = weights.data() + r * h.stride, *slope = slopes.data() + r * h.stride;
      h.add_biases(weight, q0 + r, k0, k1);
      W top;
      const W total = exponentials(weight, count, &top);
      slopes_of(slope, weight, count, total);
      if (p.table != nullptr)
        h.with_biases(q0 + r, k0, k1, [&](int64_t j, const int64_t* at) {
          for (int axis = 0; axis < 3; ++axis) table_grad[at[axis]] += slope[j];
        });
    }
    multiply<W>(sums.data(), h.width, {slopes.data(), h.stride, 1}, key_rows.data() + k0 * h.width, h.width, rows, count,
                p.depth, false);
    h.write(grad_query, sums.data(), q0, q1, p.scale);
    multiply<W>(key_sums.data() + k0 * h.width, h.width, {slopes.data(), 1, h.stride}, queries.data(), h.width, count,
                rows, p.depth, true);
    multiply<W>(value_sums.data() + k0 * h.width, h.width, {weights.data(), 1, h.stride}, grads.data(), h.width, count,
                rows, p.depth, true);
  });
  h.write(grad_key, key_sums.data(), 0, h.unit.size);
  h.write(grad_value, value_sums.data(), 0, h.unit.size);
}

template <class Task> void run_all(int64_t tasks, int threads, Task&& task) {
  const int64_t pieces = std::min<int64_t>(tasks, threads * kPieces);
  if (pieces == 0) return;
  run_tasks(pieces, threads, [&](int64_t piece) {
    for (int64_t i = tasks * piece / pieces; i < tasks * (piece + 1) / pieces; ++i) task(i);
  });
}

void patch_attention(Output out, Output norm, Input query, Input key, Input value, In<int64_t> order, int64_t patch,
                     In<int64_t> coordinates, Input table, int64_t bound, double scale, DType dtype, int64_t heads,
                     int64_t depth, bool packed, int64_t batch, int64_t num_points, In<int64_t> sizes,
                     Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto p = problem<T>({packed, batch, num_points, sizes}, query, key, value, order, patch, coordinates, table,
                              bound, scale, heads, depth);
    run_all(static_cast<int64_t>(p.units.size()) * heads, threads,
            [&](int64_t task) { attend<T>(out.as<T>(), norm.as<wide<T>>(), p, task); });
  });
}

void patch_attention_backward(Output grad_query, Output grad_key, Output grad_value, Output table_grad, Input grad,
                              Input query, Input key, Input value, In<int64_t> order, int64_t patch,
                              In<int64_t> coordinates, Input table, int64_t bound, double scale, DType dtype,
                              int64_t heads, int64_t depth, bool packed, int64_t batch, int64_t num_points,
                              In<int64_t> sizes, Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    using W = wide<T>;
    const auto p = problem<T>({packed, batch, num_points, sizes}, query, key, value, order, patch, coordinates, table,
                              bound, scale, heads, depth);
    const int64_t tasks = static_cast<int64_t>(p.units.size()) * heads;
    const int64_t rows = table ? p.table_rows() : 0;
    std::vector<W> parts(tasks * rows);
    run_all(tasks, threads, [&](int64_t task) {
      attend_backward<T>(grad_query.as<T>(), grad_key.as<T>(), grad_value.as<T>(), parts.data() + task * rows,
                         grad.as<T>(), p, task);
    });
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t head = 0; head < heads; ++head) {
        W total = 0;
        for (int64_t task = head; task < tasks; task += heads) total += parts[task * rows + row];
        table_grad.as<T>()[row * heads + head] = narrow<T>(total);
      }
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("patch_attention", &patch_attention, nb::kw_only(), "out"_a, "norm"_a, "query"_a, "key"_a, "value"_a,
             "order"_a, "patch"_a, "coordinates"_a.none(), "table"_a.none(), "bound"_a, "scale"_a, "dtype"_a, "heads"_a,
             "depth"_a, "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(), kThreads);
  module.def("patch_attention_backward", &patch_attention_backward, nb::kw_only(), "grad_query"_a, "grad_key"_a,
             "grad_value"_a, "table_grad"_a, "grad"_a, "query"_a, "key"_a, "value"_a, "order"_a, "patch"_a,
             "coordinates"_a.none(), "table"_a.none(), "bound"_a, "scale"_a, "dtype"_a, "heads"_a, "depth"_a,
             "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(), kThreads);
}
