// The maximum over the inputs of each output, and its gradient. Both read rows at random places.
#include <algorithm>
#include <vector>

#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kValuesPerTask = 1 << 15;

int64_t grain_of(int64_t volume, int64_t channels) {
  return std::max<int64_t>(1, kValuesPerTask / std::max<int64_t>(1, volume * channels));
}

POINTGRAD_INLINE bool is_inside(int64_t row, int64_t rows) {
  return static_cast<uint64_t>(row) < static_cast<uint64_t>(rows);
}

// Rows [begin, end).
template <class T>
POINTGRAD_CLONES void find_maxima(T* best, int32_t* arg, const T* features, const int32_t* sources, int64_t volume,
                                  int64_t num_features, int64_t channels, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* __restrict value = best + row * channels;
    int32_t* __restrict which = arg + row * channels;
    std::fill(value, value + channels, T{});
    std::fill(which, which + channels, -1);
    for (int64_t k = 0; k < volume; ++k) {
      const int32_t source = sources[row * volume + k];
      if (!is_inside(source, num_features)) continue;
      const T* __restrict from = features + source * channels;
      for (int64_t c = 0; c < channels; ++c) {
        const wide<T> fresh = widen(from[c]), old = widen(value[c]);
        const bool better = (which[c] < 0) | (fresh > old) | ((fresh != fresh) & (old == old));
        value[c] = better ? from[c] : value[c];
        which[c] = better ? source : which[c];
      }
    }
  }
}

void sparse_max(Output best, Out<int32_t> arg, Input features, In<int32_t> sources, DType dtype, int64_t rows,
                int64_t volume, int64_t num_features, int64_t channels, Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(rows, grain_of(volume, channels), threads, [&](int64_t begin, int64_t end) {
      find_maxima<T>(best.as<T>(), arg, features.as<T>(), sources, volume, num_features, channels, begin, end);
    });
  });
}

// Rows [begin, end) of the features. `table` (rows, volume) lists the outputs that read each of them; with `flip` its
// positions are in reverse order.
template <class T>
POINTGRAD_CLONES void add_gradients(T* out, const T* grad, const int32_t* arg, const int32_t* table, int64_t volume,
                                    int64_t outputs, int64_t channels, bool flip, int64_t begin, int64_t end) {
  std::vector<wide<T>> sums(channels);
  for (int64_t row = begin; row < end; ++row) {
    std::fill(sums.begin(), sums.end(), wide<T>(0));
    wide<T>* __restrict sum = sums.data();
    for (int64_t k = 0; k < volume; ++k) {
      const int64_t output = table[row * volume + (flip ? volume - 1 - k : k)];
      if (!is_inside(output, outputs)) continue;
      const T* __restrict from = grad + output * channels;
      const int32_t* __restrict winner = arg + output * channels;
      for (int64_t c = 0; c < channels; ++c) sum[c] += winner[c] == row ? widen(from[c]) : wide<T>(0);
    }
    for (int64_t c = 0; c < channels; ++c) out[row * channels + c] = narrow<T>(sum[c]);
  }
}

void sparse_max_backward(Output out, Input grad, In<int32_t> arg, In<int32_t> table, DType dtype, int64_t rows,
                         int64_t volume, int64_t outputs, int64_t channels, bool flip, Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(rows, grain_of(volume, channels), threads, [&](int64_t begin, int64_t end) {
      add_gradients<T>(out.as<T>(), grad.as<T>(), arg, table, volume, outputs, channels, flip, begin, end);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("sparse_max", &sparse_max, nb::kw_only(), "best"_a, "arg"_a, "features"_a, "sources"_a, "dtype"_a,
             "rows"_a, "volume"_a, "num_features"_a, "channels"_a, kThreads);
  module.def("sparse_max_backward", &sparse_max_backward, nb::kw_only(), "out"_a, "grad"_a, "arg"_a, "table"_a,
             "dtype"_a, "rows"_a, "volume"_a, "outputs"_a, "channels"_a, "flip"_a, kThreads);
}
