// Exact farthest point sampling of one cloud on one CPU thread.
//
// A pick is queued only at the blocks of the tree whose box is closer to it than their bound. Points are picked in
// rounds. A round chooses a threshold, updates the blocks whose bound is above it, and collects all points that are
// farther than the threshold as candidates. It then samples among the candidates as long as one of them is above the
// threshold. Until then no other point can be the farthest, so the sequence is exact, and blocks are updated once per
// round instead of once per pick.
//
// Box distances use the same operations in the same order as point distances. Rounding is monotone, so box distances
// bound point distances exactly and pruning never changes a result. This needs a build without -ffast-math and with
// -ffp-contract=off.
//
// Scratch memory: about 40 bytes a point for float, 75 for double, and 3 coordinates a pick.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "numbers.h"
#include "tree.h"

namespace pointgrad {
namespace fps {

constexpr int kCap = 256;    // maximum number of candidates in a round
constexpr int kFew = 768;    // up to this many points, a tree is slower
constexpr int kTarget = 48;  // desired number of candidates in a round

template <class T> POINTGRAD_INLINE bool finite(const T* p) {
  return std::isfinite(p[0]) && std::isfinite(p[1]) && std::isfinite(p[2]);
}

template <class T> POINTGRAD_INLINE uint32_t above(const Bits<T>* values, Bits<T> threshold) {
  Bits<T> mask = 0;
  POINTGRAD_LANES
  for (int i = 0; i < kFan; ++i) mask |= values[i] > threshold ? Bits<T>(1) << i : Bits<T>(0);
  return uint32_t(mask);
}

// Lowers every min_distance2 to the squared distance from p; returns the greatest.
template <class T, int N> POINTGRAD_INLINE Bits<T> lower(Cloud<T, N>& c, int64_t count, const T* p) {
  const T px = p[0], py = p[1], pz = p[2];
  Bits<T> best = 0;
  POINTGRAD_LANES
  for (int64_t i = 0; i < count; ++i) {
    const T dx = c.x[i] - px, dy = c.y[i] - py, dz = c.z[i] - pz;
    const Bits<T> d = std::min(c.min_distance2[i], to_bits<T>(dx * dx + dy * dy + dz * dz));
    c.min_distance2[i] = d;
    best = std::max(best, d);
  }
  return best;
}

template <class T> POINTGRAD_INLINE T nearest(T lo, T hi, T s) {
  const T below = lo - s, over = s - hi;
  const T out = below > over ? below : over;
  return out > T(0) ? out : T(0);
}
template <class T> POINTGRAD_INLINE T farthest(T lo, T hi, T s) {
  const T below = s - lo, over = hi - s;
  return below > over ? below : over;
}

// The boxes that are closer to p than their bound. With kTighten, bounds are lowered to the farthest corner's distance.
template <bool kTighten, class T>
POINTGRAD_INLINE uint32_t reached(Boxes<T>& b, const T* p) {
  const T px = p[0], py = p[1], pz = p[2];
  Bits<T> mask = 0;
  POINTGRAD_LANES
  for (int i = 0; i < kFan; ++i) {
    const T dx = nearest(b.lo[0][i], b.hi[0][i], px), ex = farthest(b.lo[0][i], b.hi[0][i], px);
    const T dy = nearest(b.lo[1][i], b.hi[1][i], py), ey = farthest(b.lo[1][i], b.hi[1][i], py);
    const T dz = nearest(b.lo[2][i], b.hi[2][i], pz), ez = farthest(b.lo[2][i], b.hi[2][i], pz);
    mask |= to_bits<T>(dx * dx + dy * dy + dz * dz) < b.bound[i] ? Bits<T>(1) << i : Bits<T>(0);
    if (kTighten) b.bound[i] = std::min(b.bound[i], to_bits<T>(ex * ex + ey * ey + ez * ez));
  }
  return uint32_t(mask);
}

// Appends base + i for every set bit i; four at a time, because a branch per bit mispredicts.
POINTGRAD_INLINE int64_t append(int32_t* list, int64_t count, int64_t base, uint32_t mask) {
  do {
    for (int k = 0; k < 4; ++k) {
      list[count] = int32_t(base + __builtin_ctz(mask | 1u << 31));
      count += mask != 0;
      mask &= mask - 1;
    }
  } while (mask);
  return count;
}

// Applies the queued picks of a block; returns its greatest min_distance2, which is then exact.
template <class T> POINTGRAD_INLINE Bits<T> flush(Tree<T>& tree, int64_t id) {
  Queue& queue = tree.queues[id];
  Cloud<T, kBlock>& block = tree.blocks[id];
  Bits<T>& bound = tree.nodes[id / kFan].bound[id % kFan];
  if (!queue.count) return bound;
  for (int q = 0; q < queue.count; ++q) lower<T>(block, kBlock, tree.sites.get() + 3 * int64_t(queue.pick[q]));
  queue.count = 0;
  return bound = greatest<T>(block.min_distance2, kBlock);
}

template <class T> POINTGRAD_INLINE void push(Tree<T>& tree, int64_t pick) {
  const T* p = tree.sites.get() + 3 * pick;
  int32_t *nodes = tree.node_list.get(), *blocks = tree.block_list.get();
  int64_t num_nodes = 0, num_blocks = 0;
  for (int64_t g = 0; g < tree.num_groups; ++g)
    num_nodes = append(nodes, num_nodes, g * kFan, reached<false, T>(tree.groups[g], p));
  for (int64_t i = 0; i < num_nodes; ++i)
    num_blocks = append(blocks, num_blocks, int64_t(nodes[i]) * kFan, reached<true, T>(tree.nodes[nodes[i]], p));
  for (int64_t i = 0; i < num_blocks; ++i) {
    Queue& queue = tree.queues[blocks[i]];
    if (queue.count == kQueue) flush<T>(tree, blocks[i]);
    queue.pick[queue.count++] = int32_t(pick);
  }
}

// The exact greatest min_distance2 of all points.
template <class T> POINTGRAD_INLINE Bits<T> settle(Tree<T>& tree) {
  Bits<T> best = 0;
  for (int64_t node = 0; node < tree.num_nodes; ++node) {
    if (tree.groups[node / kFan].bound[node % kFan] <= best) continue;
    for (int i = 0; i < kFan; ++i)
      if (tree.nodes[node].bound[i] > best) best = std::max(best, flush<T>(tree, node * kFan + i));
    refresh<T>(tree, node);
  }
  return best;
}

// Collects the points with a min_distance2 above the threshold and an index below `end`. Returns their number, of which
// at most kCap are kept.
template <class T>
POINTGRAD_INLINE int64_t collect(Tree<T>& tree, Cloud<T, kCap>& c, Bits<T> threshold, Bits<T> end) {
  int32_t *nodes = tree.node_list.get(), *blocks = tree.block_list.get();
  int64_t count = 0, num_nodes = 0, num_blocks = 0;
  for (int64_t g = 0; g < tree.num_groups; ++g)
    num_nodes = append(nodes, num_nodes, g * kFan, above<T>(tree.groups[g].bound, threshold));
  for (int64_t i = 0; i < num_nodes; ++i)
    num_blocks = append(blocks, num_blocks, int64_t(nodes[i]) * kFan, above<T>(tree.nodes[nodes[i]].bound, threshold));
  for (int64_t i = 0; i < num_blocks; ++i) {
    if (i + 2 < num_blocks) {
      const char* next = reinterpret_cast<const char*>(&tree.blocks[blocks[i + 2]]);
      for (size_t at = 0; at < 4 * sizeof(T) * kBlock; at += 64) __builtin_prefetch(next + at);
    }
    if (flush<T>(tree, blocks[i]) <= threshold) continue;
    const Cloud<T, kBlock>& b = tree.blocks[blocks[i]];
    for (int part = 0; part < kBlock; part += kFan) {
      Bits<T> wanted = 0;
      POINTGRAD_LANES
      for (int i = 0; i < kFan; ++i)
        wanted |= (b.min_distance2[part + i] > threshold) & (b.index[part + i] < end) ? Bits<T>(1) << i : Bits<T>(0);
      for (uint32_t mask = uint32_t(wanted); mask; mask &= mask - 1) {
        const int k = part + __builtin_ctz(mask);
        const int64_t at = std::min<int64_t>(count++, kCap - 1);
        c.x[at] = b.x[k], c.y[at] = b.y[k], c.z[at] = b.z[k];
        c.min_distance2[at] = b.min_distance2[k], c.index[at] = b.index[k];
      }
    }
  }
  for (int64_t i = 0; i < num_nodes; ++i) refresh<T>(tree, nodes[i]);
  return count;
}

// Fills the last vector with points that are never picked; returns the padded count.
template <class T, int N> POINTGRAD_INLINE int64_t pad(Cloud<T, N>& c, int64_t count) {
  for (; count % kFan; ++count) c.x[count] = c.y[count] = c.z[count] = 0, c.min_distance2[count] = 0, c.index[count] = 0;
  return count;
}

// The slot of the candidate with this min_distance2; among several, the one with the smallest index.
template <class T, int N> POINTGRAD_INLINE int64_t slot_of(const Cloud<T, N>& c, int64_t count, Bits<T> min_distance2) {
  Bits<T> slot = 0, ties = 0;
  POINTGRAD_LANES
  for (int64_t i = 0; i < count; ++i) {
    const Bits<T> same = c.min_distance2[i] == min_distance2;
    slot = std::max(slot, Bits<T>(i) & -same);
    ties += same;
  }
  if (ties > 1)
    for (int64_t i = 0; i < count; ++i)
      if (c.min_distance2[i] == min_distance2 && c.index[i] < c.index[slot]) slot = Bits<T>(i);
  return slot;
}

template <class T>
POINTGRAD_INLINE int64_t sample_tree(Tree<T>& tree, const T* points, int64_t n, const int64_t* start,
                                     int64_t num_start, int64_t m, int64_t* picks, T* distance2) {
  Cloud<T, kCap> c;
  int64_t j = 0;
  for (; j < num_start; ++j) {
    const T* p = points + 3 * start[j];
    picks[j] = start[j];
    if (finite(p)) {
      std::copy(p, p + 3, tree.sites.get() + 3 * j);
      push<T>(tree, j);
    }
    if (distance2) distance2[j] = from_bits<T>(settle<T>(tree));
  }
  // Steps are counted in bits, so that one is always the step to the next representable distance.
  const Bits<T> longest = Bits<T>(1) << (std::numeric_limits<T>::digits - 2);
  Bits<T> threshold = 0, step = longest / 32;
  int64_t from = 0, span = n;
  while (j < m) {
    if (from == 0) {
      Bits<T> bound = 0;
      for (int64_t g = 0; g < tree.num_groups; ++g) bound = std::max(bound, greatest<T>(tree.groups[g].bound, kFan));
      if (bound == 0) return j;
      threshold = bound - std::min(step, bound);
    }
    const int64_t found = collect<T>(tree, c, threshold, Bits<T>(std::min(from + span, n)));
    if (found > kCap) {
      // If even the smallest step leaves too many candidates, they are all tied: process them in index order.
      if (span == n && step > 1)
        step = std::max(Bits<T>(double(step) * kTarget / double(found)), Bits<T>(1));
      else
        span = std::max(span * (kCap / 2) / found, int64_t(1));
      continue;
    }
    const int64_t count = pad<T>(c, found), before = j;
    for (Bits<T> best = greatest<T>(c.min_distance2, count); best > threshold && j < m; ++j) {
      const int64_t slot = slot_of<T>(c, count, best);
      T* site = tree.sites.get() + 3 * j;
      site[0] = c.x[slot], site[1] = c.y[slot], site[2] = c.z[slot];
      picks[j] = c.index[slot];
      if (distance2) distance2[j - 1] = from_bits<T>(best);
      best = lower<T>(c, count, site);
    }
    for (int64_t i = before; i < j; ++i) push<T>(tree, i);
    if (span < n) {
      from += span;
      if (found < kCap / 4) span = std::min(span * 2, n - 1);
      if (from >= n) from = 0, span = n;
    } else {
      const double ratio = std::min(1.5, std::max(0.5, double(kTarget) / double(found + 1)));
      step = std::min(std::max(Bits<T>(std::ceil(double(step) * ratio)), Bits<T>(1)), longest);
    }
  }
  if (distance2) distance2[m - 1] = from_bits<T>(settle<T>(tree));
  return m;
}

// All points are candidates.
template <class T>
POINTGRAD_INLINE int64_t sample_few(const Item<T>* items, int64_t size, const T* points, const int64_t* start,
                                    int64_t num_start, int64_t m, int64_t* picks, T* distance2) {
  Cloud<T, kFew> c;
  for (int64_t i = 0; i < size; ++i) {
    c.x[i] = items[i].at[0], c.y[i] = items[i].at[1], c.z[i] = items[i].at[2];
    c.min_distance2[i] = to_bits<T>(std::numeric_limits<T>::infinity());
    c.index[i] = items[i].index;
  }
  const int64_t count = pad<T>(c, size);
  Bits<T> best = greatest<T>(c.min_distance2, count);
  for (int64_t j = 0; j < m; ++j) {
    if (j >= num_start && best == 0) return j;
    picks[j] = j < num_start ? start[j] : c.index[slot_of<T>(c, count, best)];
    const T* p = points + 3 * picks[j];
    if (finite(p)) best = lower<T>(c, count, p);
    if (distance2) distance2[j] = from_bits<T>(best);
  }
  return m;
}

#define POINTGRAD_FPS(T)                                                                                               \
  POINTGRAD_CLONES static int64_t run(Tree<T>& tree, const T* points, int64_t n, const int64_t* start,                \
                                      int64_t num_start, int64_t m, int64_t* picks, T* distance2) {                    \
    return sample_tree<T>(tree, points, n, start, num_start, m, picks, distance2);                                     \
  }                                                                                                                    \
  POINTGRAD_CLONES static int64_t run_few(const Item<T>* items, int64_t size, const T* points, const int64_t* start,  \
                                          int64_t num_start, int64_t m, int64_t* picks, T* distance2) {                \
    return sample_few<T>(items, size, points, start, num_start, m, picks, distance2);                                  \
  }
POINTGRAD_FPS(float)
POINTGRAD_FPS(double)
#undef POINTGRAD_FPS

}  // namespace fps

// points is (n, 3), 1 <= num_start <= m <= n, 0 <= start[i] < n; writes picks (m,) and, unless null, distance2 (m,).
template <class T>
void farthest_points(const T* points, int64_t n, const int64_t* start, int64_t num_start, int64_t m, int64_t* picks,
                     T* distance2) {
  if (n > std::numeric_limits<int32_t>::max()) throw std::length_error("a cloud must have fewer than 2^31 points");
  std::unique_ptr<fps::Item<T>[]> items(new fps::Item<T>[n]);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T* p = points + 3 * i;
    items[count] = {{p[0], p[1], p[2]}, int32_t(i)};
    count += fps::finite(p);
  }
  int64_t j;
  if (count <= fps::kFew) {
    j = fps::run_few(items.get(), count, points, start, num_start, m, picks, distance2);
  } else {
    {
      std::unique_ptr<fps::Item<T>[]> spare(new fps::Item<T>[count]);
      std::unique_ptr<uint8_t[]> code(new uint8_t[count]);
      fps::arrange<T>(items.get(), spare.get(), code.get(), count, fps::kBlock, true);
    }
    fps::Tree<T> tree = fps::build<T>(items.get(), count, m);
    items.reset();
    j = fps::run(tree, points, n, start, num_start, m, picks, distance2);
  }
  if (j == m) return;
  // The remaining points are equal to picked points or not finite: the former first, each in index order.
  if (distance2) std::fill(distance2 + j - 1, distance2 + m, T(0));
  std::vector<bool> picked(n);
  for (int64_t i = 0; i < j; ++i) picked[picks[i]] = true;
  for (const bool want : {true, false})
    for (int64_t i = 0; i < n && j < m; ++i)
      if (!picked[i] && fps::finite(points + 3 * i) == want) picks[j++] = i;
}

}  // namespace pointgrad
