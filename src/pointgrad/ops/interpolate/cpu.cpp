// Trilinear interpolation of (N, 8, F) corners: a weighted sum, its adjoint and its derivative by the point. The
// weights are computed once per point; most of the work is in the loops over F. The formulas are derived in
// docs/operators/interpolate.md.
#include <algorithm>

#include "cell.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kValuesPerTask = 1 << 15;

// The cell of a point spans [-1, 1], so shares change half as fast as points.
template <class T> struct Place {
  using R = wide<T>;
  Cell<R> cell;
  R along[3];
  const R* tangent;

  POINTGRAD_INLINE Place(const T* points, const T* tangents, int64_t i) : tangent(tangents ? along : nullptr) {
    for (int axis = 0; axis < 3; ++axis) {
      cell.share[axis] = (widen(points[3 * i + axis]) + R(1)) / R(2);
      if (tangents != nullptr) along[axis] = widen(tangents[3 * i + axis]) / R(2);
    }
  }
  Place(const Place&) = delete;  // `tangent` points to a member
};

template <class T>
POINTGRAD_CLONES void sum_corners(T* __restrict out, const T* __restrict corners, const T* points,
                                  const T* tangent, int64_t width, int64_t begin, int64_t end) {
  using R = wide<T>;
  for (int64_t i = begin; i < end; ++i) {
    R w[8];
    const Place<T> place(points, tangent, i);
    place.cell.weights(place.tangent, w);
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
    const Place<T> place(points, tangent, i);
    place.cell.weights(place.tangent, w);
    const T* g = grad + i * width;
    for (int k = 0; k < 8; ++k) {
      T* o = out + (i * 8 + k) * width;
      for (int64_t f = 0; f < width; ++f) o[f] = narrow<T>(w[k] * widen(g[f]));
    }
  }
}

template <class T>
POINTGRAD_CLONES void slope(T* __restrict out, const T* __restrict grad, const T* __restrict corners,
                            const T* points, const T* tangent, int64_t width, int64_t begin, int64_t end) {
  using R = wide<T>;
  for (int64_t i = begin; i < end; ++i) {
    R products[8];
    for (int k = 0; k < 8; ++k) products[k] = dot(corners + (i * 8 + k) * width, grad + i * width, width);
    const Place<T> place(points, tangent, i);
    for (int axis = 0; axis < 3; ++axis) {
      R w[8], sum = 0;
      place.cell.slopes(axis, place.tangent, w);
      for (int k = 0; k < 8; ++k) sum += w[k] * products[k];
      out[3 * i + axis] = narrow<T>(sum / R(2));
    }
  }
}

int64_t grain(int64_t width) { return std::max<int64_t>(1, kValuesPerTask / (8 * std::max<int64_t>(width, 1))); }

void trilinear(Output out, Input corners, Input points, Input tangent, DType dtype, int64_t count, int64_t width,
               Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(count, grain(width), threads, [&](int64_t begin, int64_t end) {
      sum_corners<T>(out.as<T>(), corners.as<T>(), points.as<T>(), tangent.as<T>(), width, begin, end);
    });
  });
}

void trilinear_spread(Output out, Input grad, Input points, Input tangent, DType dtype, int64_t count, int64_t width,
                      Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(count, grain(width), threads, [&](int64_t begin, int64_t end) {
      spread<T>(out.as<T>(), grad.as<T>(), points.as<T>(), tangent.as<T>(), width, begin, end);
    });
  });
}

void trilinear_slope(Output out, Input grad, Input corners, Input points, Input tangent, DType dtype, int64_t count,
                     int64_t width, Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(count, grain(width), threads, [&](int64_t begin, int64_t end) {
      slope<T>(out.as<T>(), grad.as<T>(), corners.as<T>(), points.as<T>(), tangent.as<T>(), width, begin, end);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("trilinear", &trilinear, nb::kw_only(), "out"_a, "corners"_a, "points"_a, "tangent"_a.none(), "dtype"_a,
             "count"_a, "width"_a, kThreads);
  module.def("trilinear_spread", &trilinear_spread, nb::kw_only(), "out"_a, "grad"_a, "points"_a, "tangent"_a.none(),
             "dtype"_a, "count"_a, "width"_a, kThreads);
  module.def("trilinear_slope", &trilinear_slope, nb::kw_only(), "out"_a, "grad"_a, "corners"_a, "points"_a,
             "tangent"_a.none(), "dtype"_a, "count"_a, "width"_a, kThreads);
}
