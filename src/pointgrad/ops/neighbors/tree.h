// A kd-tree over each cloud: sixteen points make a leaf, sixteen leaves a node, sixteen nodes a node above, up to one
// root. Only its bounding boxes and its points are kept, one after another, in memory that holds no pointers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "numbers.h"
#include "threads.h"

// GCC peels sixteen-lane loops before its vectoriser runs, which leaves scalar code.
#if defined(__GNUC__) && !defined(__clang__)
#define POINTGRAD_LANES _Pragma("GCC unroll 1")
#else
#define POINTGRAD_LANES
#endif

namespace pointgrad {
namespace neighbors {

constexpr int kFan = 16;    // points of a leaf, children of a node: one vector of floats
constexpr int kAxes = 3;    // a cloud of fewer dimensions has zeros in the others
constexpr int kWays = 4;    // parts of a large division
constexpr int kBins = 256;  // of its histogram
constexpr int kMostLevels = 8;

// Indices are as wide as distances, so that both fill the same vectors.
template <class T> struct IndexOf { using type = int32_t; };
template <> struct IndexOf<double> { using type = int64_t; };
template <class T> using Index = typename IndexOf<T>::type;

template <class T> struct alignas(64) Leaf {
  T at[kAxes][kFan];  // NaN beyond the last point, which is near to nothing
  Index<T> index[kFan];
};

template <class T> struct alignas(64) Node {
  T low[kAxes][kFan], high[kAxes][kFan];  // boxes of the children; empty ones are infinitely far
  Index<T> first[kFan];                   // the smallest index in each
};

// Where the tree of one cloud lies, in bytes from the start of the index.
struct alignas(64) Root {
  int64_t leaves, nodes, strays;              // strays: the points with a coordinate that is not finite
  int64_t num_points, num_finite, num_levels;
  int64_t level[kMostLevels];                 // of which node each level begins, the one above the leaves first
};

template <class T> struct Tree {
  const Root* root;
  const Leaf<T>* leaves;
  const Node<T>* nodes;
  const int32_t* strays;

  Tree(const char* memory, const Root& root)
      : root(&root),
        leaves(reinterpret_cast<const Leaf<T>*>(memory + root.leaves)),
        nodes(reinterpret_cast<const Node<T>*>(memory + root.nodes)),
        strays(reinterpret_cast<const int32_t*>(memory + root.strays)) {}

  int64_t num_leaves() const { return (root->num_finite + kFan - 1) / kFan; }
  int64_t num_strays() const { return root->num_points - root->num_finite; }
};

template <class T> struct Item {
  T at[kAxes];
  int32_t index;
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Fills in where each level of nodes begins; returns how many nodes there are.
inline int64_t lay_levels(int64_t num_leaves, Root& root) {
  int64_t nodes = 0;
  root.num_levels = 0;
  for (int64_t below = num_leaves; below > 1 || (below == 1 && nodes == 0); below = ceil_div(below, kFan)) {
    root.level[root.num_levels++] = nodes;
    nodes += ceil_div(below, kFan);
  }
  return nodes;
}

// Room for the tree of a cloud, whatever is not finite in it: sixteen strays need less than the leaf they spare.
// layout.py bounds the sum over all clouds.
template <class T> int64_t tree_bytes(int64_t num_points) {
  Root root;
  const int64_t leaves = ceil_div(num_points, kFan), nodes = lay_levels(leaves, root);
  return leaves * int64_t{sizeof(Leaf<T>)} + nodes * int64_t{sizeof(Node<T>)} + 64;
}

// Fills in where the parts of a tree lie, given where it begins and how many points are finite.
template <class T> void place_parts(Root& root) {
  const int64_t leaves = ceil_div(root.num_finite, kFan), nodes = lay_levels(leaves, root);
  root.nodes = root.leaves + leaves * int64_t{sizeof(Leaf<T>)};
  root.strays = root.nodes + nodes * int64_t{sizeof(Node<T>)};
}

// How the items [0, count) are divided along the axis they spread most on.
template <class T> struct Division {
  int axis = 0, bins;
  T low = 0, scale, last;
  uint8_t home[kBins];  // bins without a cut are written as one stream
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
#define POINTGRAD_COUNT(T)                                                                                  \
  POINTGRAD_CLONES static void count_bins(const Division<T>& division, const Item<T>* items, int64_t count, \
                                          uint8_t* bins, uint32_t* counts) {                                \
    count_any<T>(division, items, count, bins, counts);                                                     \
  }
POINTGRAD_COUNT(float)
POINTGRAD_COUNT(double)
#undef POINTGRAD_COUNT

// Writes the items to `out`, the smaller ones before each cut. The result does not depend on the number of threads.
template <class T>
void divide(const Item<T>* items, Item<T>* out, uint8_t* code, int64_t count, const int64_t* cuts, int num_cuts,
            int threads) {
  // The sample only guesses where the items lie: those outside go to the end bins, which costs time, not correctness.
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
  int64_t edge[kBins + 1];
  edge[0] = 0;
  for (int b = 0; b < division.bins; ++b) {
    edge[b + 1] = edge[b];
    for (int64_t p = 0; p < pieces; ++p) edge[b + 1] += counts[p * kBins + b];
  }
  int bin[kWays];
  bool holds[kBins] = {};
  for (int c = 0; c < num_cuts; ++c) {
    bin[c] = int(std::upper_bound(edge, edge + division.bins, cuts[c]) - edge) - 1;
    holds[bin[c]] = true;
  }
  division.home[0] = 0;
  // Only a bin with a cut must stay apart. Writing few streams spares caches and pages, writing many spares counters.
  for (int b = 1; b < division.bins; ++b)
    division.home[b] = large && !holds[b] && !holds[b - 1] ? division.home[b - 1] : uint8_t(b);
  // A piece writes after the pieces before it, so the order is that of one piece.
  std::vector<int64_t> next_of_many;
  int64_t next_of_few[kBins];
  int64_t* next = next_of_few;
  if (pieces > 1) next_of_many.resize(pieces * kBins), next = next_of_many.data();
  for (int b = 0; b < division.bins;) {
    int after = b + 1;
    while (after < division.bins && division.home[after] == division.home[b]) ++after;
    int64_t at = edge[b];
    for (int64_t p = 0; p < pieces; ++p) {
      next[p * kBins + division.home[b]] = at;
      for (int s = b; s < after; ++s) at += counts[p * kBins + s];
    }
    b = after;
  }
  parallel_for(pieces, 1, threads, [&](int64_t p, int64_t) {
    int64_t* to = next + p * kBins;
    const int64_t end = count * (p + 1) / pieces;
    for (int64_t i = count * p / pieces; i < end; ++i) out[to[division.home[code[i]]]++] = items[i];
  });
  const int axis = division.axis;
  for (int c = 0; c < num_cuts; ++c) {
    Item<T>* first = out + std::max<int64_t>(c ? cuts[c - 1] : 0, edge[bin[c]]);
    Item<T>* last = out + edge[bin[c] + 1];
    // Equal ones stay in the order of their indices, which a search among equal points profits from.
    if (std::all_of(first, last, [&](const Item<T>& item) { return item.at[axis] == first->at[axis]; })) continue;
    std::nth_element(first, out + cuts[c], last,
                     [axis](const Item<T>& p, const Item<T>& q) { return p.at[axis] < q.at[axis]; });
  }
}

// Where a range of items is cut: into whole nodes of the highest level that it holds several of.
inline int cut_places(int64_t count, int64_t* cuts) {
  const int64_t leaves = ceil_div(count, kFan);
  int64_t unit = 1;
  while (unit * kFan < leaves) unit *= kFan;
  const int64_t units = ceil_div(leaves, unit);
  const int ways = count > 4096 && units >= kWays ? kWays : 2;
  for (int w = 0; w < ways; ++w) cuts[w] = ceil_div(units * w, ways) * unit * kFan;
  cuts[ways] = count;
  return ways;
}

// Orders the items as the leaves of a kd-tree, in `items` when `home`, else in `spare`.
template <class T> void arrange(Item<T>* items, Item<T>* spare, uint8_t* code, int64_t count, bool home) {
  if (count <= kFan) {
    if (!home) std::copy(items, items + count, spare);
    return;
  }
  int64_t cuts[kWays + 1];
  const int ways = cut_places(count, cuts);
  divide(items, spare, code, count, cuts + 1, ways - 1, 1);
  for (int w = 0; w < ways; ++w)
    arrange<T>(spare + cuts[w], items + cuts[w], code + cuts[w], cuts[w + 1] - cuts[w], !home);
}

// The same with threads: large ranges are divided one after another by all of them, smaller ones are shared out.
template <class T> void arrange_large(Item<T>* items, Item<T>* spare, uint8_t* code, int64_t count, int threads) {
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
    const int ways = cut_places(range.count, cuts);
    Item<T>* from = (range.home ? items : spare) + range.begin;
    Item<T>* to = (range.home ? spare : items) + range.begin;
    divide(from, to, code + range.begin, range.count, cuts + 1, ways - 1, threads);
    for (int w = 0; w < ways; ++w) large.push_back({range.begin + cuts[w], cuts[w + 1] - cuts[w], !range.home});
  }
  run_tasks(int64_t(small.size()), threads, [&](int64_t i) {
    const Range range = small[i];
    Item<T>* from = (range.home ? items : spare) + range.begin;
    Item<T>* to = (range.home ? spare : items) + range.begin;
    arrange<T>(from, to, code + range.begin, range.count, range.home);
  });
}

template <class T> bool is_finite(const T* point, int dims) {
  T sum = 0;
  for (int a = 0; a < dims; ++a) sum += point[a] * T(0);
  return sum == T(0);
}

// Fills one leaf and its box in the node above.
template <class T> void fill_leaf(const Item<T>* items, int64_t used, Leaf<T>& leaf, Node<T>& node, int child) {
  constexpr T kFar = std::numeric_limits<T>::infinity();
  for (int a = 0; a < kAxes; ++a) {
    T low = kFar, high = -kFar;
    for (int i = 0; i < used; ++i) {
      const T v = items[i].at[a];
      leaf.at[a][i] = v;
      low = v < low ? v : low, high = v > high ? v : high;
    }
    for (int64_t i = used; i < kFan; ++i) leaf.at[a][i] = std::numeric_limits<T>::quiet_NaN();
    node.low[a][child] = low, node.high[a][child] = high;
  }
  for (int i = 0; i < kFan; ++i) leaf.index[i] = i < used ? items[i].index : -1;
  node.first[child] = *std::min_element(leaf.index, leaf.index + used);
}

// Builds the tree of points (n, dims), 1 <= dims <= 3, at `root.leaves` of `memory`, of tree_bytes(n).
template <class T> void build(char* memory, Root& root, const T* points, int64_t n, int dims, int threads) {
  constexpr T kFar = std::numeric_limits<T>::infinity();
  root.num_points = n;
  const int64_t region_end = root.leaves + tree_bytes<T>(n);
  std::unique_ptr<Item<T>[]> items(new Item<T>[n]), spare(new Item<T>[n]);
  std::unique_ptr<uint8_t[]> code(new uint8_t[n]);

  const int64_t pieces = std::max<int64_t>(1, std::min<int64_t>(threads, n >> 14));
  std::vector<int64_t> finite(pieces + 1);
  run_tasks(pieces, threads, [&](int64_t p) {
    int64_t count = 0;
    for (int64_t i = n * p / pieces; i < n * (p + 1) / pieces; ++i) count += is_finite(points + dims * i, dims);
    finite[p + 1] = count;
  });
  for (int64_t p = 0; p < pieces; ++p) finite[p + 1] += finite[p];
  const int64_t count = root.num_finite = finite[pieces];
  const int64_t num_leaves = ceil_div(count, kFan);
  place_parts<T>(root);
  Leaf<T>* leaves = reinterpret_cast<Leaf<T>*>(memory + root.leaves);
  Node<T>* nodes = reinterpret_cast<Node<T>*>(memory + root.nodes);
  int32_t* strays = reinterpret_cast<int32_t*>(memory + root.strays);

  run_tasks(pieces, threads, [&](int64_t p) {
    const int64_t begin = n * p / pieces, end = n * (p + 1) / pieces;
    int64_t to = finite[p], stray = begin - to;
    for (int64_t i = begin; i < end; ++i) {
      const T* point = points + dims * i;
      if (!is_finite(point, dims)) {
        strays[stray++] = int32_t(i);
        continue;
      }
      Item<T>& item = items[to++];
      for (int a = 0; a < kAxes; ++a) item.at[a] = a < dims ? point[a] : T(0);
      item.index = int32_t(i);
    }
  });
  arrange_large<T>(items.get(), spare.get(), code.get(), count, threads);

  const int64_t bottom = ceil_div(num_leaves, kFan);
  parallel_for(bottom, 16, threads, [&](int64_t begin, int64_t end) {
    for (int64_t node = begin; node < end; ++node) {
      for (int child = 0; child < kFan; ++child) {
        const int64_t leaf = node * kFan + child, first = leaf * kFan;
        if (leaf < num_leaves) {
          fill_leaf<T>(items.get() + first, std::min<int64_t>(kFan, count - first), leaves[leaf], nodes[node], child);
        } else {
          nodes[node].first[child] = 0;
          for (int a = 0; a < kAxes; ++a) nodes[node].low[a][child] = kFar, nodes[node].high[a][child] = -kFar;
        }
      }
    }
  });
  for (int64_t level = 1; level < root.num_levels; ++level) {
    const Node<T>* below = nodes + root.level[level - 1];
    Node<T>* here = nodes + root.level[level];
    const int64_t num_below = root.level[level] - root.level[level - 1];
    for (int64_t i = 0; i < ceil_div(num_below, kFan) * kFan; ++i) {
      here[i / kFan].first[i % kFan] = 0;  // asked for above the leaves only
      for (int a = 0; a < kAxes; ++a) {
        T low = kFar, high = -kFar;
        if (i < num_below) {
          low = *std::min_element(below[i].low[a], below[i].low[a] + kFan);
          high = *std::max_element(below[i].high[a], below[i].high[a] + kFan);
        }
        here[i / kFan].low[a][i % kFan] = low, here[i / kFan].high[a][i % kFan] = high;
      }
    }
  }
  const int64_t used = root.strays + (n - count) * int64_t{sizeof(int32_t)};
  std::memset(memory + used, 0, size_t(region_end - used));  // the same bytes for the same points
}

}  // namespace neighbors
}  // namespace pointgrad
