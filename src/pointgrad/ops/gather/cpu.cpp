// Row copies and their adjoint. Both are limited by memory, so what counts is what moves through it.
#include <algorithm>
#include <cstring>

#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kBytesPerTask = 1 << 18;
constexpr int64_t kAhead = 16;  // rows to fetch before their turn: memory answers slowly

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

void gather(address out, address features, address index, int64_t batch, int64_t rows, int64_t picks,
            int64_t row_bytes, int threads) {
  nb::gil_scoped_release release;
  const int64_t total = batch * picks;
  const bool stream = total * row_bytes > kLargerThanCache && can_copy_past_cache(out, row_bytes);
  const int64_t grain = std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(row_bytes, 1));
  parallel_for(total, grain, threads, [&](int64_t begin, int64_t end) {
    copy_rows(at<char>(out), at<const char>(features), at<const int64_t>(index), rows, picks, row_bytes, stream,
              begin, end);
    finish_copies();
  });
}

// Adds the gradients of one cloud into its rows [r0, r1), in the order of the index. A row belongs to one
// task, so the bits do not depend on the number of threads. The index is sifted piece by piece into a
// short list of own picks, so that the rows to come are known and can be fetched ahead.
template <class T>
POINTGRAD_CLONES void add_rows(wide<T>* __restrict total, const T* __restrict grad, const int64_t* index,
                               int64_t picks, int64_t channels, int64_t r0, int64_t r1) {
  constexpr int64_t kPiece = 1 << 14;
  uint32_t own[kPiece];
  std::fill(total + r0 * channels, total + r1 * channels, wide<T>(0));
  for (int64_t base = 0; base < picks; base += kPiece) {
    const int64_t* rows = index + base;
    const T* grads = grad + base * channels;
    const int64_t piece = std::min(kPiece, picks - base);
    int64_t count = 0;
    for (int64_t i = 0; i < piece; ++i) {
      own[count] = static_cast<uint32_t>(i);
      count += rows[i] >= r0 && rows[i] < r1;
    }
    for (int64_t s = 0; s < count; ++s) {
      if (s + kAhead < count) {
        const int64_t next = own[s + kAhead];
        prefetch(grads + next * channels, channels * sizeof(T));
        prefetch(total + rows[next] * channels, channels * sizeof(wide<T>));
      }
      wide<T>* to = total + rows[own[s]] * channels;
      const T* from = grads + own[s] * channels;
      for (int64_t c = 0; c < channels; ++c) to[c] += widen(from[c]);
    }
  }
}

void gather_backward(address total, address grad, address index, int dtype, int64_t batch, int64_t rows,
                     int64_t picks, int64_t channels, int threads) {
  nb::gil_scoped_release release;
  const bool small = batch * (picks + rows) * channels < kBytesPerTask / 4;
  const int64_t parts = small || batch >= threads ? 1 : std::min<int64_t>(threads, std::max<int64_t>(rows, 1));
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    run_tasks(batch * parts, small ? 1 : threads, [&](int64_t task) {
      const int64_t b = task / parts, part = task % parts;
      add_rows<T>(at<wide<T>>(total) + b * rows * channels, at<const T>(grad) + b * picks * channels,
                  at<const int64_t>(index) + b * picks, picks, channels, rows * part / parts,
                  rows * (part + 1) / parts);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  module.def("gather", &pointgrad::gather);
  module.def("gather_backward", &pointgrad::gather_backward);
}
