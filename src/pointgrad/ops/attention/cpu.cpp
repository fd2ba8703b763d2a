// Weighted sums over lists of neighbors, the dot products that are their gradient by the weights, and attention, which
// combines the two with a softmax. All of them read one row per neighbor at random places, so rows are prefetched. No
// (M, K, C) tensor is built.
#include <algorithm>
#include <limits>
#include <vector>

#include "exponential.h"
#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kValuesPerTask = 1 << 15;
constexpr int64_t kAhead = 16;  // neighbors to prefetch

// Channels are divided into groups of equal width, each with its own weight.
struct Sizes {
  int64_t batch, rows, centers, neighbors, groups, width;
  int64_t channels() const { return groups * width; }
  int64_t all_centers() const { return batch * centers; }
  int64_t grain() const {
    return std::max<int64_t>(1, kValuesPerTask / std::max<int64_t>(neighbors * channels(), 1));
  }
};

// Prefetches the row of the neighbor that is kAhead entries after number `pick` of `picks`.
template <class T>
POINTGRAD_INLINE void fetch_ahead(const T* rows, const int64_t* index, int64_t pick, int64_t picks, int64_t channels) {
  if (pick + kAhead < picks && index[pick + kAhead] >= 0)
    prefetch(rows + index[pick + kAhead] * channels, channels * sizeof(T));
}

// sum += weights * row.
template <class W, class T>
POINTGRAD_INLINE void add_weighted(wide<T>* __restrict sum, const W* __restrict weights, const T* __restrict row,
                                   int64_t groups, int64_t width) {
  if (width == 1) {
    for (int64_t g = 0; g < groups; ++g) sum[g] += widen(weights[g]) * widen(row[g]);
    return;
  }
  for (int64_t g = 0; g < groups; ++g) {
    const wide<T> weight = widen(weights[g]);
    for (int64_t c = g * width; c < (g + 1) * width; ++c) sum[c] += weight * widen(row[c]);
  }
}

// A dot product in lanes that are summed at the end. The fixed order of summation allows the compiler to vectorize.
// Narrow groups use few lanes, because summing the lanes dominates their cost.
template <int kLanes, class T> POINTGRAD_INLINE wide<T> dot(const wide<T>* a, const T* b, int64_t width) {
  wide<T> lanes[kLanes] = {};
  int64_t f = 0;
  for (; f + kLanes <= width; f += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += a[f + l] * widen(b[f + l]);
  for (int l = 0; f < width; ++f, ++l) lanes[l] += a[f] * widen(b[f]);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

// One dot product for each group.
template <class T>
POINTGRAD_INLINE void dots(wide<T>* __restrict out, const wide<T>* __restrict left, const T* __restrict row,
                           int64_t groups, int64_t width) {
  if (width == 1) {
    for (int64_t g = 0; g < groups; ++g) out[g] = left[g] * widen(row[g]);
  } else if (width < 64) {
    for (int64_t g = 0; g < groups; ++g) out[g] = dot<4>(left + g * width, row + g * width, width);
  } else {
    for (int64_t g = 0; g < groups; ++g) out[g] = dot<16>(left + g * width, row + g * width, width);
  }
}

template <class T>
POINTGRAD_CLONES void sum_neighbors(T* __restrict out, const T* weights, const T* values, const int64_t* index,
                                    const Sizes& s, int64_t begin, int64_t end) {
  const int64_t channels = s.channels();
  std::vector<wide<T>> sum(channels);
  for (int64_t m = begin; m < end; ++m) {
    const T* rows = values + m / s.centers * s.rows * channels;
    std::fill(sum.begin(), sum.end(), wide<T>(0));
    for (int64_t pick = m * s.neighbors; pick < (m + 1) * s.neighbors; ++pick) {
      fetch_ahead(rows, index, pick, end * s.neighbors, channels);
      if (index[pick] < 0) continue;
      add_weighted(sum.data(), weights + pick * s.groups, rows + index[pick] * channels, s.groups, s.width);
    }
    for (int64_t c = 0; c < channels; ++c) out[m * channels + c] = narrow<T>(sum[c]);
  }
}

template <class T>
POINTGRAD_CLONES void dot_neighbors(T* __restrict out, const T* grad, const T* values, const int64_t* index,
                                    const Sizes& s, int64_t begin, int64_t end) {
  const int64_t channels = s.channels();
  std::vector<wide<T>> left(channels), products(s.groups);
  for (int64_t m = begin; m < end; ++m) {
    const T* rows = values + m / s.centers * s.rows * channels;
    for (int64_t c = 0; c < channels; ++c) left[c] = widen(grad[m * channels + c]);
    for (int64_t pick = m * s.neighbors; pick < (m + 1) * s.neighbors; ++pick) {
      fetch_ahead(rows, index, pick, end * s.neighbors, channels);
      if (index[pick] < 0) {
        std::fill(products.begin(), products.end(), wide<T>(0));
      } else {
        dots(products.data(), left.data(), rows + index[pick] * channels, s.groups, s.width);
      }
      for (int64_t g = 0; g < s.groups; ++g) out[pick * s.groups + g] = narrow<T>(products[g]);
    }
  }
}

// Adds the weighted gradients of one cloud to its rows [r0, r1), in the order of the index. A row belongs to one task,
// so the result does not depend on the number of threads. The index is filtered piece by piece into a short list of
// picks in range, so that upcoming rows are known and can be prefetched.
template <class T>
POINTGRAD_CLONES void add_rows(wide<T>* __restrict total, const T* weights, const T* grad, const int64_t* index,
                               const Sizes& s, int64_t r0, int64_t r1) {
  constexpr int64_t kPiece = 1 << 14;
  uint32_t own[kPiece];
  const int64_t channels = s.channels(), picks = s.centers * s.neighbors;
  std::fill(total + r0 * channels, total + r1 * channels, wide<T>(0));
  for (int64_t base = 0; base < picks; base += kPiece) {
    const int64_t* rows = index + base;
    const int64_t piece = std::min(kPiece, picks - base);
    int64_t count = 0;
    for (int64_t i = 0; i < piece; ++i) {
      own[count] = static_cast<uint32_t>(i);
      count += rows[i] >= r0 && rows[i] < r1;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) prefetch(total + rows[own[i + kAhead]] * channels, channels * sizeof(wide<T>));
      const int64_t pick = base + own[i];
      add_weighted(total + index[pick] * channels, weights + pick * s.groups, grad + pick / s.neighbors * channels,
                   s.groups, s.width);
    }
  }
}

template <class T> struct Attention {
  const T *query, *key, *value, *bias;  // bias may be null
  const int64_t* index;
  wide<T> scale;
  Sizes sizes;  // its width is that of the queries and keys of one head
  int64_t value_width, bias_heads;
};

// Replaces each column of (rows, columns) logits by exp(logit - top), where `top` is its largest logit, and stores the
// sum of the exponentials in `total`. Columns are processed side by side.
template <class R>
POINTGRAD_INLINE void exponentials(R* __restrict logits, R* __restrict top, R* __restrict total, int64_t rows,
                                   int64_t columns) {
  std::fill_n(top, columns, std::numeric_limits<R>::lowest());
  std::fill_n(total, columns, R(0));
  for (int64_t k = 0; k < rows; ++k)
    for (int64_t h = 0; h < columns; ++h) top[h] = std::max(top[h], logits[k * columns + h]);
  for (int64_t k = 0; k < rows; ++k) {
    R* row = logits + k * columns;
    for (int64_t h = 0; h < columns; ++h) row[h] = exp_of_negative(row[h] - top[h]);
    for (int64_t h = 0; h < columns; ++h) total[h] += row[h];
  }
}

// Temporary memory for one center.
template <class T> struct Scratch {
  explicit Scratch(const Attention<T>& a)
      : query(a.sizes.channels()), top(a.sizes.groups), total(a.sizes.groups), inverse(a.sizes.groups) {}
  std::vector<wide<T>> query, top, total, inverse;
};

// (K, H) softmax weights of center m.
template <class T>
POINTGRAD_INLINE void weigh(wide<T>* __restrict weights, Scratch<T>& scratch, const Attention<T>& a, int64_t m,
                            int64_t last_pick) {
  using R = wide<T>;
  const Sizes& s = a.sizes;
  const int64_t heads = s.groups, depth = s.channels(), channels = heads * a.value_width;
  const T* keys = a.key + m / s.centers * s.rows * depth;
  const T* values = a.value + m / s.centers * s.rows * channels;
  R* query = scratch.query.data();
  for (int64_t d = 0; d < depth; ++d) query[d] = a.scale * widen(a.query[m * depth + d]);
  for (int64_t k = 0; k < s.neighbors; ++k) {
    const int64_t pick = m * s.neighbors + k;
    R* logits = weights + k * heads;
    fetch_ahead(keys, a.index, pick, last_pick, depth);
    if (a.index[pick] < 0) {
      std::fill_n(logits, heads, -std::numeric_limits<R>::infinity());
      continue;
    }
    prefetch(values + a.index[pick] * channels, channels * sizeof(T));  // used after the softmax
    dots(logits, query, keys + a.index[pick] * depth, heads, s.width);
    if (a.bias == nullptr) continue;
    const T* bias = a.bias + pick * a.bias_heads;
    for (int64_t h = 0; h < heads; ++h) logits[h] += widen(bias[a.bias_heads == 1 ? 0 : h]);
  }
  R *total = scratch.total.data(), *inverse = scratch.inverse.data();
  exponentials(weights, scratch.top.data(), total, s.neighbors, heads);
  // If there is no neighbor, all weights are zero and remain zero.
  for (int64_t h = 0; h < heads; ++h) inverse[h] = total[h] == 0 ? R(0) : 1 / total[h];
  for (int64_t k = 0; k < s.neighbors; ++k)
    for (int64_t h = 0; h < heads; ++h) weights[k * heads + h] *= inverse[h];
}

// sum = the weighted sum of the rows of the neighbors of center m.
template <class T>
POINTGRAD_INLINE void sum_rows(wide<T>* __restrict sum, const wide<T>* weights, const T* values, const int64_t* index,
                               const Sizes& s, int64_t width, int64_t m) {
  const int64_t channels = s.groups * width;
  const T* rows = values + m / s.centers * s.rows * channels;
  std::fill_n(sum, channels, wide<T>(0));
  for (int64_t k = 0; k < s.neighbors; ++k) {
    const int64_t row = index[m * s.neighbors + k];
    if (row >= 0) add_weighted(sum, weights + k * s.groups, rows + row * channels, s.groups, width);
  }
}

template <class T>
POINTGRAD_CLONES void attend(T* __restrict out, wide<T>* __restrict norm, const Attention<T>& a, int64_t begin,
                             int64_t end) {
  const Sizes& s = a.sizes;
  const int64_t channels = s.groups * a.value_width;
  Scratch<T> scratch(a);
  std::vector<wide<T>> weights(s.neighbors * s.groups), sum(channels);
  for (int64_t m = begin; m < end; ++m) {
    weigh(weights.data(), scratch, a, m, end * s.neighbors);
    for (int64_t h = 0; h < s.groups; ++h) {
      norm[2 * (m * s.groups + h)] = scratch.top[h];
      norm[2 * (m * s.groups + h) + 1] = scratch.total[h];
    }
    sum_rows(sum.data(), weights.data(), a.value, a.index, s, a.value_width, m);
    for (int64_t c = 0; c < channels; ++c) out[m * channels + c] = narrow<T>(sum[c]);
  }
}

// With the weights p and the dot products d of the gradient with the values, the gradient of the logits is
// p (d - sum p d), and that of the query is the sum of the keys weighted with it.
template <class T>
POINTGRAD_CLONES void attend_backward(T* __restrict grad_query, wide<T>* __restrict weights, wide<T>* __restrict slopes,
                                      const T* grad, const Attention<T>& a, int64_t begin, int64_t end) {
  using R = wide<T>;
  const Sizes& s = a.sizes;
  const int64_t depth = s.channels(), channels = s.groups * a.value_width, count = s.neighbors * s.groups;
  Scratch<T> scratch(a);
  std::vector<R> level(s.groups), upstream(channels);
  R* query = scratch.query.data();
  for (int64_t m = begin; m < end; ++m) {
    R *p = weights + m * count, *d = slopes + m * count;
    weigh(p, scratch, a, m, end * s.neighbors);
    const T* values = a.value + m / s.centers * s.rows * channels;
    for (int64_t c = 0; c < channels; ++c) upstream[c] = widen(grad[m * channels + c]);
    std::fill(level.begin(), level.end(), R(0));
    for (int64_t k = 0; k < s.neighbors; ++k) {
      const int64_t row = a.index[m * s.neighbors + k];
      R *pk = p + k * s.groups, *dk = d + k * s.groups;
      if (row < 0) continue;
      dots(dk, upstream.data(), values + row * channels, s.groups, a.value_width);
      for (int64_t h = 0; h < s.groups; ++h) level[h] += pk[h] * dk[h];
    }
    for (int64_t k = 0; k < s.neighbors; ++k) {
      R *pk = p + k * s.groups, *dk = d + k * s.groups;
      const bool valid = a.index[m * s.neighbors + k] >= 0;
      for (int64_t h = 0; h < s.groups; ++h) dk[h] = valid ? pk[h] * (dk[h] - level[h]) : R(0);
    }
    sum_rows(query, d, a.key, a.index, s, s.width, m);
    for (int64_t c = 0; c < depth; ++c) grad_query[m * depth + c] = narrow<T>(a.scale * query[c]);
  }
}

void aggregate(Output out, Input weights, Input values, In<int64_t> index, DType dtype, int64_t batch, int64_t rows,
               int64_t centers, int64_t neighbors, int64_t groups, int64_t width, Threads threads) {
  nb::gil_scoped_release release;
  const Sizes sizes{batch, rows, centers, neighbors, groups, width};
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(sizes.all_centers(), sizes.grain(), threads, [&](int64_t begin, int64_t end) {
      sum_neighbors<T>(out.as<T>(), weights.as<T>(), values.as<T>(), index, sizes, begin, end);
    });
  });
}

void aggregate_weights(Output out, Input grad, Input values, In<int64_t> index, DType dtype, int64_t batch,
                       int64_t rows, int64_t centers, int64_t neighbors, int64_t groups, int64_t width,
                       Threads threads) {
  nb::gil_scoped_release release;
  const Sizes sizes{batch, rows, centers, neighbors, groups, width};
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(sizes.all_centers(), sizes.grain(), threads, [&](int64_t begin, int64_t end) {
      dot_neighbors<T>(out.as<T>(), grad.as<T>(), values.as<T>(), index, sizes, begin, end);
    });
  });
}

void aggregate_values(Output total, Input weights, Input grad, In<int64_t> index, DType dtype, int64_t batch,
                      int64_t rows, int64_t centers, int64_t neighbors, int64_t groups, int64_t width,
                      Threads threads) {
  nb::gil_scoped_release release;
  const Sizes sizes{batch, rows, centers, neighbors, groups, width};
  const int64_t picks = centers * neighbors, channels = sizes.channels();
  const bool small = batch * (picks + rows) * channels < 2 * kValuesPerTask;
  const int64_t parts = small || batch >= threads ? 1 : std::min<int64_t>(threads, std::max<int64_t>(rows, 1));
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    run_tasks(batch * parts, small ? 1 : threads, [&](int64_t task) {
      const int64_t b = task / parts, part = task % parts;
      add_rows<T>(total.as<wide<T>>() + b * rows * channels, weights.as<T>() + b * picks * groups,
                  grad.as<T>() + b * centers * channels, index + b * picks, sizes, rows * part / parts,
                  rows * (part + 1) / parts);
    });
  });
}

template <class T>
Attention<T> attention(Input query, Input key, Input value, In<int64_t> index, Input bias, double scale,
                       const Sizes& sizes, int64_t value_width, int64_t bias_heads) {
  return {query.as<T>(), key.as<T>(), value.as<T>(), bias.as<T>(), index, static_cast<wide<T>>(scale), sizes,
          value_width, bias_heads};
}

void neighbor_attention(Output out, Output norm, Input query, Input key, Input value, In<int64_t> index, Input bias,
                        double scale, DType dtype, int64_t batch, int64_t rows, int64_t centers, int64_t neighbors,
                        int64_t heads, int64_t depth, int64_t value_width, int64_t bias_heads, Threads threads) {
  nb::gil_scoped_release release;
  const Sizes sizes{batch, rows, centers, neighbors, heads, depth};
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto a = attention<T>(query, key, value, index, bias, scale, sizes, value_width, bias_heads);
    parallel_for(sizes.all_centers(), sizes.grain(), threads, [&](int64_t begin, int64_t end) {
      attend<T>(out.as<T>(), norm.as<wide<T>>(), a, begin, end);
    });
  });
}

void neighbor_attention_backward(Output grad_query, Output weights, Output slopes, Input grad, Input query, Input key,
                                 Input value, In<int64_t> index, Input bias, double scale, DType dtype, int64_t batch,
                                 int64_t rows, int64_t centers, int64_t neighbors, int64_t heads, int64_t depth,
                                 int64_t value_width, int64_t bias_heads, Threads threads) {
  nb::gil_scoped_release release;
  const Sizes sizes{batch, rows, centers, neighbors, heads, depth};
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto a = attention<T>(query, key, value, index, bias, scale, sizes, value_width, bias_heads);
    parallel_for(sizes.all_centers(), sizes.grain(), threads, [&](int64_t begin, int64_t end) {
      attend_backward<T>(grad_query.as<T>(), weights.as<wide<T>>(), slopes.as<wide<T>>(), grad.as<T>(), a, begin, end);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("aggregate", &aggregate, nb::kw_only(), "out"_a, "weights"_a, "values"_a, "index"_a, "dtype"_a, "batch"_a,
             "rows"_a, "centers"_a, "neighbors"_a, "groups"_a, "width"_a, kThreads);
  module.def("aggregate_values", &aggregate_values, nb::kw_only(), "total"_a, "weights"_a, "grad"_a, "index"_a,
             "dtype"_a, "batch"_a, "rows"_a, "centers"_a, "neighbors"_a, "groups"_a, "width"_a, kThreads);
  module.def("aggregate_weights", &aggregate_weights, nb::kw_only(), "out"_a, "grad"_a, "values"_a, "index"_a,
             "dtype"_a, "batch"_a, "rows"_a, "centers"_a, "neighbors"_a, "groups"_a, "width"_a, kThreads);
  module.def("neighbor_attention", &neighbor_attention, nb::kw_only(), "out"_a, "norm"_a, "query"_a, "key"_a, "value"_a,
             "index"_a, "bias"_a.none(), "scale"_a, "dtype"_a, "batch"_a, "rows"_a, "centers"_a, "neighbors"_a,
             "heads"_a, "depth"_a, "value_width"_a, "bias_heads"_a, kThreads);
  module.def("neighbor_attention_backward", &neighbor_attention_backward, nb::kw_only(), "grad_query"_a, "weights"_a,
             "slopes"_a, "grad"_a, "query"_a, "key"_a, "value"_a, "index"_a, "bias"_a.none(), "scale"_a, "dtype"_a,
             "batch"_a, "rows"_a, "centers"_a, "neighbors"_a, "heads"_a, "depth"_a, "value_width"_a, "bias_heads"_a,
             kThreads);
}
