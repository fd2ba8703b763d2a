// Trilinear interpolation of (N, 8, F) corners: a weighted sum, its adjoint and its slope. The work is
// in the F loops; the weights are computed per point. Derivations are in README.md.
#include <algorithm>

#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kValuesPerTask = 1 << 15;

// Per axis: the share of the lower and the upper corner, or its slope.
template <class R> struct Pair {
  R low, high;
};

template <class R> POINTGRAD_INLINE void multiply(Pair<R> x, Pair<R> y, Pair<R> z, R scale, R* add_to) {
  const R xy[4] = {x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high};
  for (int i = 0; i < 4; ++i) {
    add_to[2 * i] += scale * (xy[i] * z.low);
    add_to[2 * i + 1] += scale * (xy[i] * z.high);
  }
}

template <class T> struct Cell {
  using R = wide<T>;
  Pair<R> share[3];
  static constexpr Pair<R> slope{R(-0.5), R(0.5)};

  POINTGRAD_INLINE explicit Cell(const T* point) {
    for (int axis = 0; axis < 3; ++axis) {
      const R high = (widen(point[axis]) + R(1)) / R(2);
      share[axis] = {R(1) - high, high};
    }
  }

  // The factor of an axis, differentiated if it is one of a or b.
  POINTGRAD_INLINE Pair<R> factor(int axis, int a, int b) const {
    return axis == a || axis == b ? slope : share[axis];
  }

  POINTGRAD_INLINE void add(int a, int b, R scale, R* weights) const {
    multiply(factor(0, a, b), factor(1, a, b), factor(2, a, b), scale, weights);
  }

  // The eight weights, or their derivative along the tangent.
  POINTGRAD_INLINE void weights(const T* tangent, R* out) const {
    std::fill_n(out, 8, R(0));
    if (tangent == nullptr) return add(-1, -1, R(1), out);
    for (int axis = 0; axis < 3; ++axis) add(axis, -1, widen(tangent[axis]), out);
  }

  // The derivative of weights() by one coordinate; second derivatives by the same coordinate vanish.
  POINTGRAD_INLINE void slopes(int axis, const T* tangent, R* out) const {
    std::fill_n(out, 8, R(0));
    if (tangent == nullptr) return add(axis, -1, R(1), out);
    for (int other = 0; other < 3; ++other)
      if (other != axis) add(axis, other, widen(tangent[other]), out);
  }
};

template <class T> POINTGRAD_INLINE const T* row(const T* tangent, int64_t i) {
  return tangent == nullptr ? nullptr : tangent + 3 * i;
}

template <class T>
POINTGRAD_CLONES void sum_corners(T* __restrict out, const T* __restrict corners, const T* points,
                                  const T* tangent, int64_t width, int64_t begin, int64_t end) {
  using R = wide<T>;
  for (int64_t i = begin; i < end; ++i) {
    R w[8];
    Cell<T>(points + 3 * i).weights(row(tangent, i), w);
    const T* c = corners + i * 8 * width;
    T* o = out + i * width;
    for (int64_t f = 0; f < width; ++f) {
      R sum = w[0] * widen(c[f]);
      for (int k = 1; k < 8; ++k) sum += w[k] * widen(c[k * width + f]);
      o[f] = narrow<T>(sum);
    }
  }
}

template <class T>
POINTGRAD_CLONES void spread(T* __restrict out, const T* __restrict grad, const T* points, const T* tangent,
                             int64_t width, int64_t begin, int64_t end) {
  using R = wide<T>;
  for (int64_t i = begin; i < end; ++i) {
    R w[8];
    Cell<T>(points + 3 * i).weights(row(tangent, i), w);
    const T* g = grad + i * width;
    for (int k = 0; k < 8; ++k) {
      T* o = out + (i * 8 + k) * width;
      for (int64_t f = 0; f < width; ++f) o[f] = narrow<T>(w[k] * widen(g[f]));
    }
  }
}

// A dot product in 16 lanes that are summed at the end: without a fixed order of its own the compiler
// may not vectorise it.
template <class T> POINTGRAD_INLINE wide<T> dot(const T* a, const T* b, int64_t width) {
  using R = wide<T>;
  constexpr int kLanes = 16;
  R lanes[kLanes] = {};
  int64_t f = 0;
  for (; f + kLanes <= width; f += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += widen(a[f + l]) * widen(b[f + l]);
  for (int l = 0; f < width; ++f, ++l) lanes[l] += widen(a[f]) * widen(b[f]);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

template <class T>
POINTGRAD_CLONES void slope(T* __restrict out, const T* __restrict grad, const T* __restrict corners,
                            const T* points, const T* tangent, int64_t width, int64_t begin, int64_t end) {
  using R = wide<T>;
  for (int64_t i = begin; i < end; ++i) {
    R products[8];
    for (int k = 0; k < 8; ++k) products[k] = dot(corners + (i * 8 + k) * width, grad + i * width, width);
    const Cell<T> cell(points + 3 * i);
    for (int axis = 0; axis < 3; ++axis) {
      R w[8], sum = 0;
      cell.slopes(axis, row(tangent, i), w);
      for (int k = 0; k < 8; ++k) sum += w[k] * products[k];
      out[3 * i + axis] = narrow<T>(sum);
    }
  }
}

int64_t grain(int64_t width) { return std::max<int64_t>(1, kValuesPerTask / (8 * std::max<int64_t>(width, 1))); }

void trilinear(address out, address corners, address points, address tangent, int dtype, int64_t count,
               int64_t width, int threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(count, grain(width), threads, [&](int64_t begin, int64_t end) {
      sum_corners<T>(at<T>(out), at<const T>(corners), at<const T>(points), at<const T>(tangent), width, begin,
                     end);
    });
  });
}

void trilinear_spread(address out, address grad, address points, address tangent, int dtype, int64_t count,
                      int64_t width, int threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(count, grain(width), threads, [&](int64_t begin, int64_t end) {
      spread<T>(at<T>(out), at<const T>(grad), at<const T>(points), at<const T>(tangent), width, begin, end);
    });
  });
}

void trilinear_slope(address out, address grad, address corners, address points, address tangent, int dtype,
                     int64_t count, int64_t width, int threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(count, grain(width), threads, [&](int64_t begin, int64_t end) {
      slope<T>(at<T>(out), at<const T>(grad), at<const T>(corners), at<const T>(points), at<const T>(tangent),
               width, begin, end);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  module.def("trilinear", &pointgrad::trilinear);
  module.def("trilinear_spread", &pointgrad::trilinear_spread);
  module.def("trilinear_slope", &pointgrad::trilinear_slope);
}
