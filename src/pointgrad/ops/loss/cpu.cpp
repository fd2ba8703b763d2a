// Cross entropy and its gradient. A row, or a block of positions, stays in the cache between passes, so the logits are
// read from memory once in the forward, and read and written once in the backward.
//
// The loss of a position is sum_c a_c (log Z - x_c) with coefficients a_c = base_c + hit_t [c = t]. `base` differs
// between positions (probabilities), is shared by all (smoothing), or is absent; `hit` is added for the target class t.
#include <algorithm>
#include <cmath>
#include <limits>

#include "exponential.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int kLanes = 32;  // parallel partial sums, which vectorize and have a fixed order
constexpr int64_t kPositions = 512;  // positions per block, where they are consecutive in memory
constexpr int64_t kValuesPerTask = 1 << 15;

enum Base { kNone, kShared, kOwn };

// A product that is zero if the factor is zero, even if the value is infinite.
template <class W> POINTGRAD_INLINE W times(W factor, W value) { return factor == W(0) ? W(0) : factor * value; }

template <class T, class K> struct Problem {
  using W = wide<T>;
  const T* logits;        // (N, C, S)
  const int64_t* target;  // (N, S) classes, or null
  const W* hit;           // (C,), with classes
  const K* base;          // (N, C, S) or (C,), or null
  int64_t ignore_index, clouds, classes, positions;

  // The target class of a position, or -1 if it is ignored.
  POINTGRAD_INLINE int64_t chosen(int64_t position) const {
    const int64_t t = target[position];
    return t == ignore_index || t < 0 || t >= classes ? -1 : t;
  }
};

// The value subtracted from each logit: the largest logit, or 0 if all are -inf.
template <class W> POINTGRAD_INLINE W front(W top) {
  return top == -std::numeric_limits<W>::infinity() ? W(0) : top;
}

template <class W> POINTGRAD_INLINE W log_of_total(W total) { return total == W(0) ? W(0) : std::log(total); }

template <class W> struct Lanes {
  W value[kLanes];
  POINTGRAD_INLINE explicit Lanes(W first) { std::fill_n(value, kLanes, first); }

  // The next values of a row, filled with `neutral` after its end.
  template <class T> POINTGRAD_INLINE void load(const T* from, int64_t left, W neutral) {
    if (left >= kLanes) {
      for (int k = 0; k < kLanes; ++k) value[k] = widen(from[k]);
    } else {
      std::fill_n(value, kLanes, neutral);
      for (int k = 0; k < left; ++k) value[k] = widen(from[k]);
    }
  }

  // Both overwrite the lanes.
  POINTGRAD_INLINE W sum() {
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k) value[k] += value[k + half];
    return value[0];
  }
  POINTGRAD_INLINE W highest() {
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k) value[k] = value[k + half] > value[k] ? value[k + half] : value[k];
    return value[0];
  }
};

template <class W, class K> POINTGRAD_INLINE W sum_of_row(const K* row, int64_t count) {
  Lanes<W> sum(0), next(0);
  for (int64_t c = 0; c < count; c += kLanes) {
    next.load(row + c, count - c, W(0));
    for (int k = 0; k < kLanes; ++k) sum.value[k] += next.value[k];
  }
  return sum.sum();
}

template <Base kind, class T, class K>
POINTGRAD_CLONES void loss_of_rows(wide<T>* loss, wide<T>* tops, wide<T>* totals, const Problem<T, K>& p,
                                   int64_t begin, int64_t end) {
  using W = wide<T>;
  constexpr W kLeast = -std::numeric_limits<W>::infinity();
  const int64_t classes = p.classes;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = p.logits + r * classes;
    const K* base = kind == kOwn ? p.base + r * classes : p.base;
    Lanes<W> top(kLeast), total(0), dot(0), next(0), factor(0);
    for (int64_t c = 0; c < classes; c += kLanes) {
      next.load(x + c, classes - c, kLeast);
      for (int k = 0; k < kLanes; ++k) top.value[k] = next.value[k] > top.value[k] ? next.value[k] : top.value[k];
    }
    const W highest = front(top.highest());
    for (int64_t c = 0; c < classes; c += kLanes) {
      next.load(x + c, classes - c, kLeast);
      for (int k = 0; k < kLanes; ++k) total.value[k] += exp_of_negative(next.value[k] - highest);
      if (kind == kNone) continue;
      factor.load(base + c, classes - c, W(0));
      for (int k = 0; k < kLanes; ++k) dot.value[k] += times(factor.value[k], highest - next.value[k]);
    }
    const W sum = total.sum(), log_total = log_of_total(sum);
    W value = kind == kNone ? W(0) : dot.sum() + times(sum_of_row<W>(base, classes), log_total);
    if (p.target) {
      const int64_t t = p.chosen(r);
      value = t < 0 ? W(0) : value + times(p.hit[t], (highest - widen(x[t])) + log_total);
    }
    loss[r] = value;
    tops[r] = highest;
    totals[r] = sum;
  }
}

template <Base kind, class T, class K>
POINTGRAD_CLONES void slopes_of_rows(T* out, const wide<T>* grad, const wide<T>* tops, const wide<T>* totals,
                                     const Problem<T, K>& p, int64_t begin, int64_t end) {
  using W = wide<T>;
  for (int64_t r = begin; r < end; ++r) {
    const T* __restrict x = p.logits + r * p.classes;
    const K* __restrict base = kind == kOwn ? p.base + r * p.classes : p.base;
    T* __restrict to = out + r * p.classes;
    const int64_t t = p.target ? p.chosen(r) : 0;
    if (t < 0 || totals[r] == W(0)) {
      std::fill_n(to, p.classes, narrow<T>(W(0)));
      continue;
    }
    const W g = grad[r], top = tops[r];
    const W shared = kind == kNone ? W(0) : sum_of_row<W>(base, p.classes);
    const W amount = shared + (p.target ? p.hit[t] : W(0));
    // The gradient is multiplied last: it is infinite if the weights of a mean sum to zero.
    if (amount == W(0)) {
      for (int64_t c = 0; c < p.classes; ++c) to[c] = narrow<T>(g * (kind == kNone ? W(0) : -widen(base[c])));
    } else {
      const W scale = amount / totals[r];
      for (int64_t c = 0; c < p.classes; ++c) {
        const W share = scale * exp_of_negative(widen(x[c]) - top);
        to[c] = narrow<T>(g * (kind == kNone ? share : share - widen(base[c])));
      }
    }
    if (p.target) {  // computed again, so that a 16-bit result is rounded only once
      const W own = p.hit[t] + (kind == kNone ? W(0) : widen(base[t]));
      const W share = times<W>(amount, exp_of_negative(widen(x[t]) - top) / totals[r]);
      to[t] = narrow<T>(g * (share - own));
    }
  }
}

// Positions [first, first + count) of one cloud, side by side. The logits of a position are far apart, often at
// distances that map to the same cache set, so one pass computes the largest and the sum. The sum is rescaled when the
// largest grows.
template <Base kind, class T, class K>
POINTGRAD_CLONES void loss_of_positions(wide<T>* loss, wide<T>* tops, wide<T>* totals, const Problem<T, K>& p,
                                        int64_t cloud, int64_t first, int64_t count) {
  using W = wide<T>;
  constexpr W kLowest = std::numeric_limits<W>::lowest();
  const int64_t begin = cloud * p.classes * p.positions + first, row = cloud * p.positions + first;
  W top[kPositions], total[kPositions], dot[kPositions], amount[kPositions];
  std::fill_n(top, kPositions, kLowest);
  std::fill_n(total, kPositions, W(0));
  std::fill_n(dot, kPositions, W(0));
  std::fill_n(amount, kPositions, W(0));
  for (int64_t c = 0; c < p.classes; ++c) {
    const T* x = p.logits + begin + c * p.positions;
    for (int64_t s = 0; s < count; ++s) {
      const W value = widen(x[s]), below = value - top[s];
      const bool higher = value > top[s];
      const W power = exp_of_negative(higher ? -below : below);
      total[s] = (higher ? total[s] * power : total[s]) + (higher ? W(1) : power);
      top[s] = higher ? value : top[s];
    }
  }
  for (int64_t s = 0; s < count; ++s) {
    top[s] = total[s] == W(0) ? W(0) : top[s];  // all logits are -inf
    total[s] = top[s] > std::numeric_limits<W>::max() ? top[s] - top[s] : total[s];  // +inf: NaN
  }
  for (int64_t c = 0; c < p.classes && kind != kNone; ++c) {
    const T* x = p.logits + begin + c * p.positions;
    for (int64_t s = 0; s < count; ++s) {
      const W a = widen(kind == kOwn ? p.base[begin + c * p.positions + s] : p.base[c]);
      dot[s] += times<W>(a, top[s] - widen(x[s]));
      amount[s] += a;
    }
  }
  for (int64_t s = 0; s < count; ++s) {
    const W log_total = log_of_total(total[s]);
    W value = dot[s] + times(amount[s], log_total);
    if (p.target) {
      const int64_t t = p.chosen(row + s);
      value = t < 0 ? W(0)
                    : value + times(p.hit[t], (top[s] - widen(p.logits[begin + t * p.positions + s])) + log_total);
    }
    loss[row + s] = value;
  }
  std::copy_n(top, count, tops + row);
  std::copy_n(total, count, totals + row);
}

template <Base kind, class T, class K>
POINTGRAD_CLONES void slopes_of_positions(T* out, const wide<T>* grad, const wide<T>* tops, const wide<T>* totals,
                                          const Problem<T, K>& p, int64_t cloud, int64_t first, int64_t count) {
  using W = wide<T>;
  const int64_t begin = cloud * p.classes * p.positions + first, row = cloud * p.positions + first;
  W amount[kPositions], scale[kPositions];
  std::fill_n(amount, kPositions, W(0));
  if (kind != kNone) {
    for (int64_t c = 0; c < p.classes; ++c)
      for (int64_t s = 0; s < count; ++s)
        amount[s] += widen(kind == kOwn ? p.base[begin + c * p.positions + s] : p.base[c]);
  }
  for (int64_t s = 0; s < count; ++s) {
    const int64_t t = p.target ? p.chosen(row + s) : -1;
    amount[s] += t < 0 ? W(0) : p.hit[t];
    scale[s] = amount[s] / totals[row + s];
  }
  const W *top = tops + row, *g = grad + row;
  for (int64_t c = 0; c < p.classes; ++c) {
    const int64_t at = begin + c * p.positions;
    W slope[kPositions];  // rounded in a separate loop, because the combined loop does not vectorize
    for (int64_t s = 0; s < count; ++s) {
      const W power = exp_of_negative(widen(p.logits[at + s]) - top[s]);
      slope[s] = amount[s] == W(0) ? W(0) : scale[s] * power;
      if (kind != kNone) slope[s] -= widen(kind == kOwn ? p.base[at + s] : p.base[c]);
    }
    for (int64_t s = 0; s < count; ++s) out[at + s] = narrow<T>(g[s] * slope[s]);
  }
  for (int64_t s = 0; s < count; ++s) {
    const int64_t t = p.target ? p.chosen(row + s) : 0;
    if (t < 0 || totals[row + s] == W(0)) {
      for (int64_t c = 0; c < p.classes; ++c) out[begin + c * p.positions + s] = narrow<T>(W(0));
    } else if (p.target) {
      const int64_t at = begin + t * p.positions + s;
      const W own = p.hit[t] + (kind == kNone ? W(0) : widen(kind == kOwn ? p.base[at] : p.base[t]));
      const W share = times<W>(amount[s], exp_of_negative(widen(p.logits[at]) - top[s]) / totals[row + s]);
      out[at] = narrow<T>(g[s] * (share - own));
    }
  }
}

// Calls rows(begin, end) on pieces of the rows, or block(cloud, first, count) for each block of positions.
template <class Rows, class Block>
void divide_work(int64_t clouds, int64_t classes, int64_t positions, int threads, Rows&& rows, Block&& block) {
  const int64_t width = std::max<int64_t>(classes, 1);
  if (positions == 1) return parallel_for(clouds, kValuesPerTask / width, threads, rows);
  const int64_t blocks = (positions + kPositions - 1) / kPositions;
  parallel_for(clouds * blocks, kValuesPerTask / (width * kPositions), threads, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b % blocks * kPositions;
      block(b / blocks, first, std::min(kPositions, positions - first));
    }
  });
}

// Calls body(kind, problem). Coefficients per position have the type of the logits or, if `wide_base`, the type of the
// computation, which shared ones always have.
template <class Body>
void with_problem(DType dtype, bool wide_base, Input logits, In<int64_t> target, Input hit, Input base,
                  int64_t ignore_index, int64_t clouds, int64_t classes, int64_t positions, Body&& body) {
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const int64_t* chosen = target;
    const auto with = [&](auto kind, auto base_tag) {
      using K = decltype(base_tag);
      body(kind, Problem<T, K>{logits.as<T>(), chosen, hit.as<wide<T>>(), base.as<K>(), ignore_index, clouds, classes,
                               positions});
    };
    if (!base.as<T>()) return with(std::integral_constant<Base, kNone>{}, wide<T>{});
    if (chosen) return with(std::integral_constant<Base, kShared>{}, wide<T>{});
    const std::integral_constant<Base, kOwn> own{};
    wide_base ? with(own, wide<T>{}) : with(own, T{});
  });
}

void cross_entropy(Output loss, Output top, Output total, Input logits, In<int64_t> target, Input hit, Input base,
                   bool wide_base, int64_t ignore_index, DType dtype, int64_t clouds, int64_t classes,
                   int64_t positions, Threads threads) {
  nb::gil_scoped_release release;
  with_problem(dtype, wide_base, logits, target, hit, base, ignore_index, clouds, classes, positions, [&](auto kind, auto p) {
    using W = typename decltype(p)::W;
    divide_work(
        clouds, classes, positions, threads,
        [&](int64_t begin, int64_t end) {
          loss_of_rows<kind()>(loss.as<W>(), top.as<W>(), total.as<W>(), p, begin, end);
        },
        [&](int64_t cloud, int64_t first, int64_t count) {
          loss_of_positions<kind()>(loss.as<W>(), top.as<W>(), total.as<W>(), p, cloud, first, count);
        });
  });
}

void cross_entropy_backward(Output out, Input grad, Input top, Input total, Input logits, In<int64_t> target,
                            Input hit, Input base, bool wide_base, int64_t ignore_index, DType dtype, int64_t clouds,
                            int64_t classes, int64_t positions, Threads threads) {
  nb::gil_scoped_release release;
  with_problem(dtype, wide_base, logits, target, hit, base, ignore_index, clouds, classes, positions, [&](auto kind, auto p) {
    using W = typename decltype(p)::W;
    using T = std::remove_const_t<std::remove_pointer_t<decltype(p.logits)>>;
    divide_work(
        clouds, classes, positions, threads,
        [&](int64_t begin, int64_t end) {
          slopes_of_rows<kind()>(out.as<T>(), grad.as<W>(), top.as<W>(), total.as<W>(), p, begin, end);
        },
        [&](int64_t cloud, int64_t first, int64_t count) {
          slopes_of_positions<kind()>(out.as<T>(), grad.as<W>(), top.as<W>(), total.as<W>(), p, cloud, first, count);
        });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("cross_entropy", &cross_entropy, nb::kw_only(), "loss"_a, "top"_a, "total"_a, "logits"_a,
             "target"_a.none(), "hit"_a.none(), "base"_a.none(), "wide_base"_a, "ignore_index"_a, "dtype"_a, "clouds"_a,
             "classes"_a, "positions"_a, kThreads);
  module.def("cross_entropy_backward", &cross_entropy_backward, nb::kw_only(), "out"_a, "grad"_a, "top"_a, "total"_a,
             "logits"_a, "target"_a.none(), "hit"_a.none(), "base"_a.none(), "wide_base"_a, "ignore_index"_a, "dtype"_a,
             "clouds"_a, "classes"_a, "positions"_a, kThreads);
}
