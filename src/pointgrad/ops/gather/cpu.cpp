// Row copies and their adjoint. Both are limited by memory, so what counts is what moves through it.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kBytesPerTask = 1 << 18;
constexpr int64_t kAhead = 32;  // rows to fetch before their turn: memory answers slowly

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
  });
}

// The picks of each row, in the order of the index: those of row r are order[begin[r] .. begin[r + 1]).
// A counting sort in parts: each part of the index counts its rows, then knows where its picks go.
template <class Place> struct PicksByRow {
  std::unique_ptr<Place[]> begin, order;

  PicksByRow(const int64_t* index, int64_t picks, int64_t rows, int threads)
      : begin(new Place[rows + 1]), order(new Place[picks]) {
    const int64_t parts = picks < (1 << 16) ? 1 : std::min(threads, 4);
    std::unique_ptr<Place[]> places(new Place[parts * rows]());
    const auto each_pick = [&](auto&& use) {
      run_tasks(parts, threads, [&](int64_t part) {
        for (int64_t i = picks * part / parts; i < picks * (part + 1) / parts; ++i)
          if (index[i] >= 0) use(places[part * rows + index[i]], i);
      });
    };
    each_pick([](Place& count, int64_t) { ++count; });
    Place total = 0;
    for (int64_t r = 0; r < rows; ++r) {
      begin[r] = total;
      for (int64_t part = 0; part < parts; ++part) {
        const Place count = places[part * rows + r];
        places[part * rows + r] = total;
        total += count;
      }
    }
    begin[rows] = total;
    each_pick([&](Place& place, int64_t i) { order[place++] = static_cast<Place>(i); });
  }
};

// Sums the gradients of rows [r0, r1). A row is summed by one thread in the order of the index, so the
// bits do not depend on the number of threads.
template <class T, class Place>
POINTGRAD_CLONES void sum_picks(T* __restrict out, const T* __restrict grad, const Place* begin,
                                const Place* order, int64_t channels, int64_t r0, int64_t r1) {
  constexpr int64_t kWidth = 64;
  const int64_t last = begin[r1];
  for (int64_t r = r0; r < r1; ++r) {
    for (int64_t c = 0; c < channels; c += kWidth) {
      const int64_t width = std::min(kWidth, channels - c);
      wide<T> sum[kWidth] = {};
      for (int64_t s = begin[r]; s < static_cast<int64_t>(begin[r + 1]); ++s) {
        if (s + kAhead < last) prefetch(grad + order[s + kAhead] * channels + c, width * sizeof(T));
        const T* from = grad + order[s] * channels + c;
        if (width == kWidth) {
          for (int64_t k = 0; k < kWidth; ++k) sum[k] += widen(from[k]);
        } else {
          for (int64_t k = 0; k < width; ++k) sum[k] += widen(from[k]);
        }
      }
      for (int64_t k = 0; k < width; ++k) out[r * channels + c + k] = narrow<T>(sum[k]);
    }
  }
}

template <class T, class Place>
void add_back(T* out, const T* grad, const int64_t* index, int64_t batch, int64_t rows, int64_t picks,
              int64_t channels, int threads) {
  const auto one_cloud = [&](int64_t b, int helpers) {
    const PicksByRow<Place> by_row(index + b * picks, picks, rows, helpers);
    const int64_t grain = std::max<int64_t>(1, kBytesPerTask * rows / (1 + (picks + rows) * channels * sizeof(T)));
    parallel_for(rows, grain, helpers, [&](int64_t begin, int64_t end) {
      sum_picks<T, Place>(out + b * rows * channels, grad + b * picks * channels, by_row.begin.get(),
                          by_row.order.get(), channels, begin, end);
    });
  };
  if (batch >= threads) {
    parallel_for(batch, 1, threads, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) one_cloud(b, 1);
    });
  } else {
    for (int64_t b = 0; b < batch; ++b) one_cloud(b, threads);
  }
}

void gather_backward(address out, address grad, address index, int dtype, int64_t batch, int64_t rows,
                     int64_t picks, int64_t channels, int threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto run = picks <= std::numeric_limits<uint32_t>::max() ? add_back<T, uint32_t> : add_back<T, uint64_t>;
    run(at<T>(out), at<const T>(grad), at<const int64_t>(index), batch, rows, picks, channels, threads);
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  module.def("gather", &pointgrad::gather);
  module.def("gather_backward", &pointgrad::gather_backward);
}
