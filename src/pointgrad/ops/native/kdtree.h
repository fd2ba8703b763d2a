// The order of points along a kd-tree, which neighbor search and farthest point sampling share: the points of a leaf
// are consecutive, sixteen leaves make a node, sixteen nodes a node above.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "numbers.h"
#include "threads.h"

// GCC peels sixteen-lane loops before its vectorizer runs, which leaves scalar code.
#if defined(__GNUC__) && !defined(__clang__)
#define POINTGRAD_LANES _Pragma("GCC unroll 1")
#else
#define POINTGRAD_LANES
#endif

namespace pointgrad {
namespace kdtree {

constexpr int kFan = 16;    // children of a node: one vector of floats
constexpr int kAxes = 3;    // a cloud of fewer dimensions has zeros in the others
constexpr int kWays = 4;    // parts of a large division
constexpr int kBins = 256;  // bins of its histogram

template <class T> struct Item {
  T at[kAxes];
  int32_t index;
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The division of the items [0, count) along the axis of their largest extent.
template <class T> struct Division {
  int axis = 0, bins;
  T low = 0, scale, last;
  uint8_t home[kBins];  // the stream of each bin: adjacent bins without a cut share one
};

template <class T> POINTGRAD_INLINE uint8_t bin_of(const Division<T>& division, const Item<T>& item) {
  const T q = (item.at[division.axis] - division.low) * division.scale;
  const T in = q > T(0) ? q : T(0);
  return uint8_t(int(in < division.last ? in : division.last));
}

template <class T>
POINTGRAD_INLINE void count_any(const Division<T>& division, const Item<T>* items, int64_t count, uint8_t* bins,
                                uint32_t* counts) {
  const Division<T> d = division;
  for (int64_t i = 0; i < count; ++i) bins[i] = bin_of(d, items[i]);
  for (int64_t i = 0; i < count; ++i) ++counts[bins[i]];
}
// Moves each item to the next place of its stream.
template <class T>
POINTGRAD_INLINE void move_any(const uint8_t* home, const Item<T>* items, int64_t count, const uint8_t* bins,
                               uint32_t* next, Item<T>* out) {
  for (int64_t i = 0; i < count; ++i) out[next[home[bins[i]]]++] = items[i];
}
#define POINTGRAD_DIVIDE(T)                                                                                           \
  POINTGRAD_CLONES static void count_bins(const Division<T>& division, const Item<T>* items, int64_t count,          \
                                          uint8_t* bins, uint32_t* counts) {                                          \
    count_any<T>(division, items, count, bins, counts);                                                               \
  }                                                                                                                   \
  POINTGRAD_CLONES static void move_items(const uint8_t* home, const Item<T>* items, int64_t count,                  \
                                          const uint8_t* bins, uint32_t* next, Item<T>* out) {                         \
    move_any<T>(home, items, count, bins, next, out);                                                                 \
  }
POINTGRAD_DIVIDE(float)
POINTGRAD_DIVIDE(double)
#undef POINTGRAD_DIVIDE

// Writes the items to `out`, the smaller ones before each cut. The result does not depend on the number of threads.
template <class T>
void divide(const Item<T>* items, Item<T>* out, uint8_t* code, int64_t count, const int64_t* cuts, int num_cuts,
            int threads) {
  // The extent is estimated from a sample. Items outside it go to the end bins, which costs time, not correctness.
  const int64_t sample = std::min<int64_t>(count, 32);
  Division<T> division;
  T widest = -1;
  for (int a = 0; a < kAxes; ++a) {
    T lo = items[0].at[a], hi = lo;
    for (int64_t i = 1; i < sample; ++i) {
      const T v = items[i * (count / sample)].at[a];
      lo = std::min(lo, v), hi = std::max(hi, v);
    }
    const T half = hi / 2 - lo / 2;  // the whole width may not be finite
    if (half > widest) widest = half, division.low = lo, division.axis = a;
  }
  const bool large = count > 4096;
  division.bins = large ? kBins : count > 256 ? 64 : 32;
  division.scale = T(division.bins) / 2 / std::max(widest, std::numeric_limits<T>::min());
  division.last = T(division.bins - 1);

  constexpr int64_t kPiece = 1 << 14;
  const int64_t pieces = threads > 1 ? std::max<int64_t>(1, std::min<int64_t>(threads, count / kPiece)) : 1;
  std::vector<uint32_t> many;
  uint32_t few[kBins];
  uint32_t* counts = few;
  std::fill(few, few + division.bins, 0u);
  if (pieces > 1) many.resize(pieces * kBins), counts = many.data();
  parallel_for(pieces, 1, threads, [&](int64_t p, int64_t) {
    const int64_t begin = count * p / pieces, end = count * (p + 1) / pieces;
    count_bins(division, items + begin, end - begin, code + begin, counts + p * kBins);
  });
  uint32_t edge[kBins + 1];  // a cloud has fewer than 2^31 points
  edge[0] = 0;
  for (int b = 0; b < division.bins; ++b) {
    uint32_t total = counts[b];
    for (int64_t p = 1; p < pieces; ++p) total += counts[p * kBins + b];
    edge[b + 1] = edge[b] + total;
  }
  int bin[kWays];
  bool holds[kBins] = {};
  for (int c = 0; c < num_cuts; ++c) {
    bin[c] = int(std::upper_bound(edge, edge + division.bins, uint32_t(cuts[c])) - edge) - 1;
    holds[bin[c]] = true;
  }
  division.home[0] = 0;
  // Only a bin with a cut must stay separate. Fewer streams are better for caches, more streams for the counters.
  for (int b = 1; b < division.bins; ++b) division.home[b] = uint8_t(b);
  if (large)
    for (int b = 1; b < division.bins; ++b)
      if (!holds[b] && !holds[b - 1]) division.home[b] = division.home[b - 1];
  std::vector<uint32_t> next_of_many;
  uint32_t next_of_one[kBins];
  uint32_t* next = next_of_one;
  if (pieces == 1) {
    std::copy(edge, edge + division.bins, next_of_one);
  } else {
    // Each piece writes after the pieces before it, so the order does not depend on the number of pieces.
    next_of_many.resize(pieces * kBins), next = next_of_many.data();
    for (int b = 0; b < division.bins;) {
      int after = b + 1;
      while (after < division.bins && division.home[after] == division.home[b]) ++after;
      uint32_t at = edge[b];
      for (int64_t p = 0; p < pieces; ++p) {
        next[p * kBins + division.home[b]] = at;
        for (int s = b; s < after; ++s) at += counts[p * kBins + s];
      }
      b = after;
    }
  }
  parallel_for(pieces, 1, threads, [&](int64_t p, int64_t) {
    const int64_t begin = count * p / pieces, end = count * (p + 1) / pieces;
    move_items(division.home, items + begin, end - begin, code + begin, next + p * kBins, out);
  });
  const int axis = division.axis;
  for (int c = 0; c < num_cuts; ++c) {
    Item<T>* first = out + std::max<int64_t>(c ? cuts[c - 1] : 0, edge[bin[c]]);
    Item<T>* last = out + edge[bin[c] + 1];
    // Equal items are in the order of their indices, which speeds up a search among equal points.
    if (std::all_of(first, last, [&](const Item<T>& item) { return item.at[axis] == first->at[axis]; })) continue;
    std::nth_element(first, out + cuts[c], last, [axis](const Item<T>& p, const Item<T>& q) {
      return p.at[axis] < q.at[axis] || (p.at[axis] == q.at[axis] && p.index < q.index);
    });
  }
}

// The cuts of a range of items: into whole nodes of the highest level of which it holds several.
inline int cut_places(int64_t count, int leaf_points, int64_t* cuts) {
  const int64_t leaves = ceil_div(count, leaf_points);
  int64_t unit = 1;
  while (unit * kFan < leaves) unit *= kFan;
  const int64_t units = ceil_div(leaves, unit);
  const int ways = count >= 4096 && units >= kWays ? kWays : 2;
  for (int w = 0; w < ways; ++w) cuts[w] = ceil_div(units * w, ways) * unit * leaf_points;
  cuts[ways] = count;
  return ways;
}

// Orders the items as the leaves of a kd-tree, in `items` when `home`, else in `spare`.
template <class T>
void arrange(Item<T>* items, Item<T>* spare, uint8_t* code, int64_t count, int leaf_points, bool home) {
  if (count <= leaf_points) {
    if (!home) std::copy(items, items + count, spare);
    return;
  }
  int64_t cuts[kWays + 1];
  const int ways = cut_places(count, leaf_points, cuts);
  divide(items, spare, code, count, cuts + 1, ways - 1, 1);
  for (int w = 0; w < ways; ++w)
    arrange<T>(spare + cuts[w], items + cuts[w], code + cuts[w], cuts[w + 1] - cuts[w], leaf_points, !home);
}

// The same in several threads: all of them divide each large range, then each takes small ranges. The result is in
// `items`.
template <class T>
void arrange_large(Item<T>* items, Item<T>* spare, uint8_t* code, int64_t count, int leaf_points, int threads) {
  struct Range {
    int64_t begin, count;
    bool home;
  };
  std::vector<Range> large{{0, count, true}}, small;
  const int64_t share = std::max<int64_t>(1 << 12, count / (2 * threads));
  while (!large.empty()) {
    const Range range = large.back();
    large.pop_back();
    if (threads == 1 || range.count <= share) {
      small.push_back(range);
      continue;
    }
    int64_t cuts[kWays + 1];
    const int ways = cut_places(range.count, leaf_points, cuts);
    Item<T>* from = (range.home ? items : spare) + range.begin;
    Item<T>* to = (range.home ? spare : items) + range.begin;
    divide(from, to, code + range.begin, range.count, cuts + 1, ways - 1, threads);
    for (int w = 0; w < ways; ++w) large.push_back({range.begin + cuts[w], cuts[w + 1] - cuts[w], !range.home});
  }
  run_tasks(int64_t(small.size()), threads, [&](int64_t i) {
    const Range range = small[i];
    Item<T>* from = (range.home ? items : spare) + range.begin;
    Item<T>* to = (range.home ? spare : items) + range.begin;
    arrange<T>(from, to, code + range.begin, range.count, leaf_points, range.home);
  });
}

}  // namespace kdtree
}  // namespace pointgrad
