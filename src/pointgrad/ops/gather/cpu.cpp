// Row copies and their adjoint. Both are limited by memory bandwidth.
#include <algorithm>
#include <cstring>

#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"
#include "tiles.h"

namespace pointgrad {
namespace {

constexpr int64_t kBytesPerTask = 1 << 18;
constexpr int64_t kAhead = 16;  // rows to prefetch

// Rows [begin, end) of the flat (batch * picks) output.
void copy_rows(char* out, const char* features, const int64_t* index, int64_t rows, int64_t picks,
               size_t row_bytes, bool stream, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const char* cloud = features + static_cast<size_t>(i / picks) * rows * row_bytes;
    if (i + kAhead < end && index[i + kAhead] >= 0) prefetch(cloud + index[i + kAhead] * row_bytes, row_bytes);
    const int64_t row = index[i];
    char* to = out + static_cast<size_t>(i) * row_bytes;
    if (row < 0) {
      std::memset(to, 0, row_bytes);
    } else if (stream) {
      copy_past_cache(to, cloud + static_cast<size_t>(row) * row_bytes, row_bytes);
    } else {
      std::memcpy(to, cloud + static_cast<size_t>(row) * row_bytes, row_bytes);
    }
  }
}

void gather(Output out, Input features, In<int64_t> index, int64_t batch, int64_t rows, int64_t picks,
            int64_t row_bytes, Threads threads) {
  nb::gil_scoped_release release;
  const int64_t total = batch * picks;
  if (row_bytes == 0) return;  // nothing to copy, and an empty tensor has no address
  const bool stream = total * row_bytes > kLargerThanCache && can_copy_past_cache(out.data, row_bytes);
  const int64_t grain = std::max<int64_t>(1, kBytesPerTask / row_bytes);
  parallel_for(total, grain, threads, [&](int64_t begin, int64_t end) {
    copy_rows(out.as<char>(), features.as<char>(), index, rows, picks, row_bytes, stream, begin, end);
    finish_copies();
  });
}

// Adds one tile's gradients into its rows, in the order of the index.
template <class T>
POINTGRAD_CLONES void add_rows(wide<T>* __restrict total, const T* __restrict grad, const uint64_t* entry,
                               const uint64_t* end, int64_t rows, int64_t channels) {
  std::fill(total, total + rows * channels, wide<T>(0));
  for (; entry < end; ++entry) {
    if (entry + kAhead < end) prefetch(grad + Tiles::pick(entry[kAhead]) * channels, channels * sizeof(T));
    wide<T>* to = total + Tiles::row(*entry) * channels;
    const T* from = grad + Tiles::pick(*entry) * channels;
    for (int64_t c = 0; c < channels; ++c) to[c] = plus(to[c], widen(from[c]));
  }
}

// The same sums in the same order, without sorting the index into tiles first.
template <class T>
POINTGRAD_CLONES void add_entries(wide<T>* __restrict total, const T* __restrict grad, const int64_t* index,
                                  int64_t rows, int64_t picks, int64_t channels) {
  std::fill(total, total + rows * channels, wide<T>(0));
  for (int64_t i = 0; i < picks; ++i) {
    if (index[i] < 0) continue;
    wide<T>* to = total + index[i] * channels;
    for (int64_t c = 0; c < channels; ++c) to[c] = plus(to[c], widen(grad[i * channels + c]));
  }
}

void gather_backward(Output total, Input grad, In<int64_t> index, Out<uint64_t> scratch, DType dtype, int64_t batch,
                     int64_t rows, int64_t picks, int64_t channels, Threads threads) {
  nb::gil_scoped_release release;
  if (batch * (picks + rows) * channels < kBytesPerTask / 4) threads.count = 1;
  with_number_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    // For few channels sorting costs more than adding, unless many threads share it.
    if (channels <= 2 && threads <= 4 * batch) {
      return run_tasks(batch, threads, [&](int64_t b) {
        add_entries<T>(total.as<wide<T>>() + b * rows * channels, grad.as<T>() + b * picks * channels,
                       index + b * picks, rows, picks, channels);
      });
    }
    const Tiles tiles(scratch, index, batch, rows, picks,
                      channels * sizeof(wide<T>), threads);
    run_tasks(tiles.count(), threads, [&](int64_t tile) {
      const int64_t b = tiles.cloud(tile), first = tiles.first(tile);
      add_rows<T>(total.as<wide<T>>() + (b * rows + first) * channels, grad.as<T>() + b * picks * channels,
                  tiles.begin(tile), tiles.end(tile), tiles.last(tile) - first, channels);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("gather", &gather, nb::kw_only(), "out"_a, "features"_a, "index"_a, "batch"_a, "rows"_a, "picks"_a,
             "row_bytes"_a, kThreads);
  module.def("gather_backward", &gather_backward, nb::kw_only(), "total"_a, "grad"_a, "index"_a, "scratch"_a, "dtype"_a,
             "batch"_a, "rows"_a, "picks"_a, "channels"_a, kThreads);
}
