// Windows of images: copying them into columns, adding them back, and their maxima. All of this is limited by memory
// bandwidth, so inner loops run along rows of pixels. Each pixel and each window belongs to one thread, and sums are in
// the order of the kernel's positions, so results do not depend on how the work is divided.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kValuesPerTask = 1 << 15;
constexpr int64_t kBandValues = 1 << 14;  // sums that are kept in the cache while windows are added to them

// One axis: position k of the kernel in window o is at pixel o * stride - padding + k * dilation.
struct Axis {
  int64_t size, kernel, stride, dilation, padding, windows;

  int64_t at(int64_t window, int64_t k) const { return window * stride - padding + k * dilation; }

  // The first window whose position k is at `pixel` or after it.
  int64_t first_from(int64_t pixel, int64_t k) const {
    const int64_t distance = pixel - at(0, k);
    return distance <= 0 ? 0 : std::min(windows, (distance - 1) / stride + 1);  // written so that nothing overflows
  }
};

using Pair = std::array<int64_t, 2>;  // along y and x

struct Geometry {
  Axis y, x;

  Geometry(Pair size, Pair kernel, Pair stride, Pair dilation, Pair padding, Pair windows)
      : y{size[0], kernel[0], stride[0], dilation[0], padding[0], windows[0]},
        x{size[1], kernel[1], stride[1], dilation[1], padding[1], windows[1]} {}
  int64_t pixels() const { return y.size * x.size; }
  int64_t positions() const { return y.kernel * x.kernel; }
  int64_t windows() const { return y.windows * x.windows; }
};

// Rows [begin, end) of windows at position (i, j) of the kernel. Each consists of zeros, pixels, and zeros. Values are
// only copied, so T is any type of the right size.
template <class T>
POINTGRAD_CLONES void copy_rows(T* __restrict out, const T* __restrict image, const Geometry& g, int64_t i, int64_t j,
                                int64_t begin, int64_t end) {
  const int64_t first = g.x.first_from(0, j), last = std::max(first, g.x.first_from(g.x.size, j));
  const int64_t count = last - first, stride = g.x.stride, windows = g.x.windows;
  for (int64_t o = begin; o < end; ++o, out += windows) {
    const int64_t y = g.y.at(o, i);
    if (count == 0 || y < 0 || y >= g.y.size) {
      std::fill(out, out + windows, T(0));
      continue;
    }
    const T* from = image + y * g.x.size + g.x.at(first, j);
    for (int64_t c = 0; c < first; ++c) out[c] = T(0);
    if (stride == 1) {
      std::copy(from, from + count, out + first);
    } else {
      for (int64_t c = 0; c < count; ++c) out[first + c] = from[c * stride];
    }
    for (int64_t c = last; c < windows; ++c) out[c] = T(0);
  }
}

template <class T>
void unfold_as(T* out, const T* images, int64_t planes, const Geometry& g, int threads) {
  const int64_t rows = planes * g.positions() * g.y.windows;  // each has g.x.windows values
  parallel_for(rows, std::max<int64_t>(1, kValuesPerTask / g.x.windows), threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end;) {
      const int64_t column = row / g.y.windows, position = column % g.positions(), top = row % g.y.windows;
      const int64_t bottom = std::min(g.y.windows, top + (end - row));
      copy_rows(out + row * g.x.windows, images + column / g.positions() * g.pixels(), g, position / g.x.kernel,
                position % g.x.kernel, top, bottom);
      row += bottom - top;
    }
  });
}

void unfold(Output out, Input images, int value_bytes, int64_t planes, Pair size, Pair kernel, Pair stride,
            Pair dilation, Pair padding, Pair windows, Threads threads) {
  nb::gil_scoped_release release;
  const Geometry g(size, kernel, stride, dilation, padding, windows);
  switch (value_bytes) {
    case 2: return unfold_as(out.as<uint16_t>(), images.as<uint16_t>(), planes, g, threads);
    case 4: return unfold_as(out.as<uint32_t>(), images.as<uint32_t>(), planes, g, threads);
    default: return unfold_as(out.as<uint64_t>(), images.as<uint64_t>(), planes, g, threads);
  }
}

// Rows [top, bottom) of one plane, from its columns (positions, windows).
template <class T>
POINTGRAD_CLONES void add_windows(wide<T>* __restrict total, const T* __restrict columns, const Geometry& g,
                                  int64_t top, int64_t bottom) {
  std::fill(total, total + (bottom - top) * g.x.size, wide<T>(0));
  const int64_t stride = g.x.stride;
  for (int64_t i = 0; i < g.y.kernel; ++i) {
    const int64_t first_y = g.y.first_from(top, i), last_y = g.y.first_from(bottom, i);
    for (int64_t j = 0; j < g.x.kernel; ++j) {
      const int64_t first = g.x.first_from(0, j), count = g.x.first_from(g.x.size, j) - first;
      for (int64_t o = first_y; count > 0 && o < last_y; ++o) {
        const T* from = columns + (i * g.x.kernel + j) * g.windows() + o * g.x.windows + first;
        wide<T>* to = total + (g.y.at(o, i) - top) * g.x.size + g.x.at(first, j);
        if (stride == 1) {
          for (int64_t c = 0; c < count; ++c) to[c] += widen(from[c]);
        } else {
          for (int64_t c = 0; c < count; ++c) to[c * stride] += widen(from[c]);
        }
      }
    }
  }
}

template <class T> POINTGRAD_CLONES void narrow_all(T* out, const wide<T>* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = narrow<T>(values[i]);
}

// Calls sum(total) to compute `count` sums in the wide type, and rounds them into `out` if T is narrower.
template <class T, class Sum> void summed_wide(T* out, std::vector<wide<T>>& scratch, int64_t count, Sum&& sum) {
  if constexpr (std::is_same_v<T, wide<T>>) {
    sum(out);
  } else {
    scratch.resize(count);
    sum(scratch.data());
    narrow_all<T>(out, scratch.data(), count);
  }
}

void fold(Output out, Input columns, DType dtype, int64_t planes, Pair size, Pair kernel, Pair stride, Pair dilation,
          Pair padding, Pair windows, Threads threads) {
  nb::gil_scoped_release release;
  const Geometry g(size, kernel, stride, dilation, padding, windows);
  const int64_t band = std::max<int64_t>(1, kBandValues / g.x.size);
  const int64_t grain = std::max<int64_t>(1, kValuesPerTask / (g.x.size * g.positions()));
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(planes * g.y.size, grain, threads, [&](int64_t begin, int64_t end) {
      std::vector<wide<T>> scratch;
      for (int64_t row = begin; row < end;) {
        const int64_t plane = row / g.y.size, top = row % g.y.size;
        const int64_t bottom = std::min({g.y.size, top + band, top + (end - row)});
        summed_wide<T>(out.as<T>() + row * g.x.size, scratch, (bottom - top) * g.x.size, [&](wide<T>* total) {
          add_windows<T>(total, columns.as<T>() + plane * g.positions() * g.windows(), g, top, bottom);
        });
        row += bottom - top;
      }
    });
  });
}

// Updates the maxima of one row of windows, `best`, and their positions in the kernel, `which`, with one row of pixels.
template <class T>
POINTGRAD_CLONES void compare_row(wide<T>* __restrict best, int32_t* __restrict which, const T* __restrict row,
                                  const Axis& x, int64_t j, int32_t position) {
  const int64_t first = x.first_from(0, j), last = x.first_from(x.size, j), stride = x.stride;
  if (first >= last) return;
  const T* from = row + x.at(first, j);
  best += first;
  which += first;
  const auto compare = [&](int64_t o, wide<T> value) {
    const bool better = (which[o] < 0) | (value > best[o]) | (value != value);
    best[o] = better ? value : best[o];
    which[o] = better ? position : which[o];
  };
  if (stride == 1) {
    for (int64_t o = 0; o < last - first; ++o) compare(o, widen(from[o]));
  } else {
    for (int64_t o = 0; o < last - first; ++o) compare(o, widen(from[o * stride]));
  }
}

void max_pool2d(Output values, Out<int64_t> index, Input images, DType dtype, int64_t planes, Pair size, Pair kernel,
                Pair stride, Pair dilation, Pair padding, Pair windows, Threads threads) {
  nb::gil_scoped_release release;
  const Geometry g(size, kernel, stride, dilation, padding, windows);
  const int64_t grain = std::max<int64_t>(1, kValuesPerTask / (g.x.windows * g.positions()));
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(planes * g.y.windows, grain, threads, [&](int64_t begin, int64_t end) {
      std::vector<wide<T>> best(g.x.windows);
      std::vector<int32_t> which(g.x.windows);
      for (int64_t row = begin; row < end; ++row) {
        std::fill(best.begin(), best.end(), -std::numeric_limits<wide<T>>::infinity());
        std::fill(which.begin(), which.end(), -1);
        const int64_t window = row % g.y.windows;
        const T* image = images.as<T>() + row / g.y.windows * g.pixels();
        for (int64_t i = 0; i < g.y.kernel; ++i) {
          const int64_t y = g.y.at(window, i);
          if (y < 0 || y >= g.y.size) continue;
          for (int64_t j = 0; j < g.x.kernel; ++j) {
            compare_row<T>(best.data(), which.data(), image + y * g.x.size, g.x, j,
                           static_cast<int32_t>(i * g.x.kernel + j));
          }
        }
        narrow_all<T>(values.as<T>() + row * g.x.windows, best.data(), g.x.windows);
        int64_t* to = index + row * g.x.windows;
        for (int64_t o = 0; o < g.x.windows; ++o) {
          const int64_t y = g.y.at(window, which[o] / g.x.kernel), x = g.x.at(o, which[o] % g.x.kernel);
          to[o] = which[o] < 0 ? -1 : y * g.x.size + x;
        }
      }
    });
  });
}

void max_pool2d_backward(Output out, Input grad, In<int64_t> index, DType dtype, int64_t planes, int64_t pixels,
                         int64_t windows, Threads threads) {
  nb::gil_scoped_release release;
  const int64_t grain = std::max<int64_t>(1, kValuesPerTask / (pixels + windows));
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(planes, grain, threads, [&](int64_t begin, int64_t end) {
      std::vector<wide<T>> scratch;
      for (int64_t plane = begin; plane < end; ++plane) {
        const T* from = grad.as<T>() + plane * windows;
        const int64_t* to = index + plane * windows;
        summed_wide<T>(out.as<T>() + plane * pixels, scratch, pixels, [&](wide<T>* total) {
          std::fill(total, total + pixels, wide<T>(0));
          for (int64_t o = 0; o < windows; ++o) {
            // Compared as unsigned numbers, -1 (no pixel) is out of range as well.
            if (static_cast<uint64_t>(to[o]) < static_cast<uint64_t>(pixels)) total[to[o]] += widen(from[o]);
          }
        });
      }
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("unfold", &unfold, nb::kw_only(), "out"_a, "images"_a, "value_bytes"_a, "planes"_a, "size"_a, "kernel"_a,
             "stride"_a, "dilation"_a, "padding"_a, "windows"_a, kThreads);
  module.def("fold", &fold, nb::kw_only(), "out"_a, "columns"_a, "dtype"_a, "planes"_a, "size"_a, "kernel"_a,
             "stride"_a, "dilation"_a, "padding"_a, "windows"_a, kThreads);
  module.def("max_pool2d", &max_pool2d, nb::kw_only(), "values"_a, "index"_a, "images"_a, "dtype"_a, "planes"_a,
             "size"_a, "kernel"_a, "stride"_a, "dilation"_a, "padding"_a, "windows"_a, kThreads);
  module.def("max_pool2d_backward", &max_pool2d_backward, nb::kw_only(), "out"_a, "grad"_a, "index"_a, "dtype"_a,
             "planes"_a, "pixels"_a, "windows"_a, kThreads);
}
