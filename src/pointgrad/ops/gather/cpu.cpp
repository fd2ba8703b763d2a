// Row copies and their adjoint. Both are limited by memory, so the loops only have to keep it busy.
#include <algorithm>
#include <cstring>

#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kBytesPerTask = 1 << 18;

// Rows [begin, end) of the flat (batch * picks) output.
void copy_rows(char* out, const char* features, const int64_t* index, int64_t rows, int64_t picks,
               size_t row_bytes, int64_t begin, int64_t end) {
  constexpr int64_t kAhead = 8;
  for (int64_t i = begin; i < end; ++i) {
    const char* cloud = features + static_cast<size_t>(i / picks) * rows * row_bytes;
    if (i + kAhead < end && index[i + kAhead] >= 0) __builtin_prefetch(cloud + index[i + kAhead] * row_bytes);
    const int64_t row = index[i];
    char* to = out + static_cast<size_t>(i) * row_bytes;
    if (row >= 0) {
      std::memcpy(to, cloud + static_cast<size_t>(row) * row_bytes, row_bytes);
    } else {
      std::memset(to, 0, row_bytes);
    }
  }
}

void gather(address out, address features, address index, int64_t batch, int64_t rows, int64_t picks,
            int64_t row_bytes, int threads) {
  nb::gil_scoped_release release;
  const int64_t total = batch * picks;
  expect_writes(at<void>(out), static_cast<size_t>(total) * row_bytes);
  const int64_t grain = std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(row_bytes, 1));
  parallel_for(total, grain, threads, [&](int64_t begin, int64_t end) {
    copy_rows(at<char>(out), at<const char>(features), at<const int64_t>(index), rows, picks, row_bytes, begin,
              end);
  });
}

// Adds the gradients of one cloud into channels [c0, c1) of the rows [r0, r1), in the order of the
// index. Every element of `total` belongs to one task, so the sum's order, and with it the bits, do
// not depend on the number of threads.
template <class T>
POINTGRAD_CLONES void add_rows(wide<T>* __restrict total, const T* __restrict grad, const int64_t* index,
                               int64_t picks, int64_t channels, int64_t c0, int64_t c1, int64_t r0,
                               int64_t r1) {
  const int64_t width = c1 - c0;
  for (int64_t r = r0; r < r1; ++r) std::memset(total + r * channels + c0, 0, width * sizeof(wide<T>));
  constexpr int64_t kAhead = 8;
  for (int64_t i = 0; i < picks; ++i) {
    if (i + kAhead < picks && index[i + kAhead] >= 0)
      __builtin_prefetch(total + index[i + kAhead] * channels + c0, 1);
    const int64_t row = index[i];
    if (row < r0 || row >= r1) continue;  // another task's row, or -1
    wide<T>* to = total + row * channels + c0;
    const T* from = grad + i * channels + c0;
    for (int64_t c = 0; c < width; ++c) to[c] += widen(from[c]);
  }
}

void gather_backward(address total, address grad, address index, int dtype, int64_t batch, int64_t rows,
                     int64_t picks, int64_t channels, int threads) {
  nb::gil_scoped_release release;
  // Split by cloud, then by runs of at least 16 channels, then by rows (each task then reads the
  // whole index), until every thread has work.
  const bool small = batch * picks * channels < kBytesPerTask / 4;
  const int64_t wanted = small ? 1 : threads;
  const auto pieces = [](int64_t want, int64_t have) { return std::max<int64_t>(1, std::min(want, have)); };
  const int64_t by_channel = pieces((wanted + batch - 1) / std::max<int64_t>(batch, 1), channels / 16);
  const int64_t by_row = pieces(wanted / std::max<int64_t>(batch * by_channel, 1), rows);
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    run_tasks(batch * by_channel * by_row, small ? 1 : threads, [&](int64_t task) {
      const int64_t r = task % by_row, c = task / by_row % by_channel, b = task / by_row / by_channel;
      add_rows<T>(at<wide<T>>(total) + b * rows * channels, at<const T>(grad) + b * picks * channels,
                  at<const int64_t>(index) + b * picks, picks, channels, channels * c / by_channel,
                  channels * (c + 1) / by_channel, rows * r / by_row, rows * (r + 1) / by_row);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  module.def("gather", &pointgrad::gather);
  module.def("gather_backward", &pointgrad::gather_backward);
}
