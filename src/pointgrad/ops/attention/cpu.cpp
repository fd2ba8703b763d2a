// Weighted sums over lists of neighbours, and the dot products that are their adjoint by the weights. Both
// read one row per neighbour from anywhere, so rows are fetched ahead; each is used where it stands, and no
// (M, K, C) tensor is built.
#include <algorithm>
#include <vector>

#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kValuesPerTask = 1 << 15;
constexpr int64_t kAhead = 16;  // neighbours to fetch before their turn
constexpr int kLanes = 16;

// Channels in groups of equal width; a group has its own weight.
struct Sizes {
  int64_t batch, rows, centers, neighbors, groups, width;
  int64_t channels() const { return groups * width; }
  int64_t all_centers() const { return batch * centers; }
  int64_t grain() const {
    return std::max<int64_t>(1, kValuesPerTask / std::max<int64_t>(neighbors * channels(), 1));
  }
};

// Fetches the row that will be wanted kAhead neighbours after number `pick` of `picks`.
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

// A dot product in 16 lanes that are summed at the end: without a fixed order of its own the compiler
// may not vectorise it.
template <class T> POINTGRAD_INLINE wide<T> dot(const wide<T>* a, const T* b, int64_t width) {
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
    return;
  }
  for (int64_t g = 0; g < groups; ++g) out[g] = dot(left + g * width, row + g * width, width);
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

// Adds weighted gradients of one cloud into its rows [r0, r1), in the order of the index. A row belongs to
// one task, so the bits do not depend on the number of threads. The index is sifted piece by piece into a
// short list of own picks, so that the rows to come are known and can be fetched ahead.
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

void aggregate(address out, address weights, address values, address index, int dtype, int64_t batch, int64_t rows,
               int64_t centers, int64_t neighbors, int64_t groups, int64_t width, int threads) {
  nb::gil_scoped_release release;
  const Sizes sizes{batch, rows, centers, neighbors, groups, width};
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(sizes.all_centers(), sizes.grain(), threads, [&](int64_t begin, int64_t end) {
      sum_neighbors<T>(at<T>(out), at<const T>(weights), at<const T>(values), at<const int64_t>(index), sizes, begin,
                       end);
    });
  });
}

void aggregate_weights(address out, address grad, address values, address index, int dtype, int64_t batch,
                       int64_t rows, int64_t centers, int64_t neighbors, int64_t groups, int64_t width, int threads) {
  nb::gil_scoped_release release;
  const Sizes sizes{batch, rows, centers, neighbors, groups, width};
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(sizes.all_centers(), sizes.grain(), threads, [&](int64_t begin, int64_t end) {
      dot_neighbors<T>(at<T>(out), at<const T>(grad), at<const T>(values), at<const int64_t>(index), sizes, begin,
                       end);
    });
  });
}

void aggregate_values(address total, address weights, address grad, address index, int dtype, int64_t batch,
                      int64_t rows, int64_t centers, int64_t neighbors, int64_t groups, int64_t width, int threads) {
  nb::gil_scoped_release release;
  const Sizes sizes{batch, rows, centers, neighbors, groups, width};
  const int64_t picks = centers * neighbors, channels = sizes.channels();
  const bool small = batch * (picks + rows) * channels < 2 * kValuesPerTask;
  const int64_t parts = small || batch >= threads ? 1 : std::min<int64_t>(threads, std::max<int64_t>(rows, 1));
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    run_tasks(batch * parts, small ? 1 : threads, [&](int64_t task) {
      const int64_t b = task / parts, part = task % parts;
      add_rows<T>(at<wide<T>>(total) + b * rows * channels, at<const T>(weights) + b * picks * groups,
                  at<const T>(grad) + b * centers * channels, at<const int64_t>(index) + b * picks, sizes,
                  rows * part / parts, rows * (part + 1) / parts);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  module.def("aggregate", &pointgrad::aggregate);
  module.def("aggregate_values", &pointgrad::aggregate_values);
  module.def("aggregate_weights", &pointgrad::aggregate_weights);
}
