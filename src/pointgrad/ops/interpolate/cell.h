// The weights of the eight corners of a cell, and their derivatives. A corner has the number 4 x + 2 y + z. The weights
// depend on the shares of the upper corners along each axis; tangents and slopes are in units of those shares.
#pragma once
#include <algorithm>

#include "numbers.h"

namespace pointgrad {

template <class R> struct Cell {
  R share[3];  // share of the upper corner along each axis

  // The eight weights, or their derivative along the tangent.
  POINTGRAD_INLINE void weights(const R* tangent, R* out) const {
    std::fill_n(out, 8, R(0));
    if (tangent == nullptr) return add(-1, -1, R(1), out);
    for (int axis = 0; axis < 3; ++axis) add(axis, -1, tangent[axis], out);
  }

  // The derivative of weights() along one axis. Second derivatives along the same axis are zero.
  POINTGRAD_INLINE void slopes(int axis, const R* tangent, R* out) const {
    std::fill_n(out, 8, R(0));
    if (tangent == nullptr) return add(axis, -1, R(1), out);
    for (int other = 0; other < 3; ++other)
      if (other != axis) add(axis, other, tangent[other], out);
  }

 private:
  struct Pair {
    R low, high;
  };

  // The factors of an axis, differentiated if it is a or b.
  POINTGRAD_INLINE Pair factor(int axis, int a, int b) const {
    return axis == a || axis == b ? Pair{R(-1), R(1)} : Pair{R(1) - share[axis], share[axis]};
  }

  POINTGRAD_INLINE void add(int a, int b, R scale, R* to) const {
    const Pair x = factor(0, a, b), y = factor(1, a, b), z = factor(2, a, b);
    const R xy[4] = {x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high};
    for (int i = 0; i < 4; ++i) {
      to[2 * i] += scale * (xy[i] * z.low);
      to[2 * i + 1] += scale * (xy[i] * z.high);
    }
  }
};

// A dot product in 16 lanes that are summed at the end. The fixed order of summation allows the compiler to vectorize.
template <class T> POINTGRAD_INLINE wide<T> dot(const T* a, const T* b, int64_t width) {
  using R = wide<T>;
  constexpr int kLanes = 16;
  if (width < kLanes) {
    R sum = 0;
    for (int64_t f = 0; f < width; ++f) sum += widen(a[f]) * widen(b[f]);
    return sum;
  }
  R lanes[kLanes] = {};
  int64_t f = 0;
  for (; f + kLanes <= width; f += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += widen(a[f + l]) * widen(b[f + l]);
  for (int l = 0; f < width; ++f, ++l) lanes[l] += widen(a[f]) * widen(b[f]);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

}  // namespace pointgrad
