// A kd-tree over one cloud, cut into blocks for farthest point sampling (farthest.h): sixteen blocks make a
// node, sixteen nodes a group. Each keeps a box and an upper bound of the squared distances inside.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "numbers.h"

// GCC peels sixteen-lane loops before its vectoriser runs, which leaves scalar code.
#if defined(__GNUC__) && !defined(__clang__)
#define POINTGRAD_LANES _Pragma("GCC unroll 1")
#else
#define POINTGRAD_LANES
#endif

namespace pointgrad {
namespace fps {

constexpr int kFan = 16;     // blocks of a node: one vector of floats
constexpr int kBlock = 64;   // points of a block
constexpr int kQueue = 15;   // with the count, one cache line
constexpr int kWays = 4, kBins = 256;

// Non-negative floats order as their bits do, and only integer reductions vectorise without -ffast-math.
template <class T> struct BitsOf { using type = int32_t; };
template <> struct BitsOf<double> { using type = int64_t; };
template <class T> using Bits = typename BitsOf<T>::type;

template <class T> POINTGRAD_INLINE Bits<T> to_bits(T value) { return bit_cast<Bits<T>>(value); }
template <class T> POINTGRAD_INLINE T from_bits(Bits<T> bits) { return bit_cast<T>(bits); }

template <class T> struct Item {
  T at[3];
  int32_t index;
};
template <class T, int N> struct alignas(64) Cloud {
  T x[N], y[N], z[N];
  Bits<T> mind[N], index[N];
};
struct alignas(64) Queue {
  int32_t count, pick[kQueue];
};
template <class T> struct alignas(64) Boxes {
  T lo[3][kFan], hi[3][kFan];
  Bits<T> bound[kFan];
};
template <class T> struct Tree {
  int64_t num_blocks, num_nodes, num_groups;
  std::unique_ptr<Cloud<T, kBlock>[]> blocks;
  std::unique_ptr<Queue[]> queues;
  std::unique_ptr<Boxes<T>[]> nodes, groups;  // boxes of the blocks of a node, of sixteen nodes
  std::unique_ptr<T[]> sites;                 // coordinates of the picks
  std::unique_ptr<int32_t[]> node_list, block_list;
};

template <class T> POINTGRAD_INLINE Bits<T> greatest(const Bits<T>* values, int64_t count) {
  Bits<T> best = 0;
  POINTGRAD_LANES
  for (int64_t i = 0; i < count; ++i) best = std::max(best, values[i]);
  return best;
}

template <class T> POINTGRAD_INLINE void refresh(Tree<T>& tree, int64_t node) {
  tree.groups[node / kFan].bound[node % kFan] = greatest<T>(tree.nodes[node].bound, kFan);
}

// Writes the items to `out`, along the axis they spread most on, with the smaller ones before each cut.
template <class T>
POINTGRAD_INLINE void divide_any(const Item<T>* items, Item<T>* out, uint8_t* code, int64_t count, const int64_t* cuts,
                                 int num_cuts) {
  constexpr int64_t kSample = 32;
  int axis = 0;
  T low = 0, widest = -1;
  for (int a = 0; a < 3; ++a) {
    T lo = items[0].at[a], hi = lo;
    for (int64_t i = 1; i < kSample; ++i) {
      const T v = items[i * (count / kSample)].at[a];
      lo = v < lo ? v : lo, hi = v > hi ? v : hi;
    }
    const T half = hi / 2 - lo / 2;
    if (half > widest) widest = half, low = lo, axis = a;
  }
  // The sample only guesses where the items lie: those outside go to the end bins, which costs time, not correctness.
  const bool large = count > 4096;
  const int bins = large ? kBins : 64;
  const T scale = T(bins) / 2 / widest, last = T(bins - 1);
  for (int64_t i = 0; i < count; ++i) {
    const T q = (items[i].at[axis] - low) * scale;
    const T in = q > T(0) ? q : T(0);
    code[i] = uint8_t(int(in < last ? in : last));
  }
  uint32_t edge[kBins + 1] = {}, next[kBins];
  for (int64_t i = 0; i < count; ++i) ++edge[code[i] + 1];
  for (int k = 0; k < bins; ++k) edge[k + 1] += edge[k], next[k] = edge[k];
  int bin[kWays];
  bool holds[kBins] = {};
  for (int c = 0; c < num_cuts; ++c) {
    bin[c] = int(std::upper_bound(edge, edge + bins, uint32_t(cuts[c])) - edge) - 1;
    holds[bin[c]] = true;
  }
  // Only a bin with a cut must stay apart. Writing few streams spares caches and pages, writing many spares counters.
  uint8_t home[kBins] = {};
  for (int k = 1; k < bins; ++k) home[k] = large && !holds[k] && !holds[k - 1] ? home[k - 1] : uint8_t(k);
  for (int64_t i = 0; i < count; ++i) out[next[home[code[i]]]++] = items[i];
  for (int c = 0; c < num_cuts; ++c) {
    const int64_t first = std::max<int64_t>(c ? cuts[c - 1] : 0, edge[bin[c]]);
    std::nth_element(out + first, out + cuts[c], out + edge[bin[c] + 1],
                     [axis](const Item<T>& p, const Item<T>& q) { return p.at[axis] < q.at[axis]; });
  }
}

#define POINTGRAD_DIVIDE(T)                                                                                \
  POINTGRAD_CLONES static void divide(const Item<T>* items, Item<T>* out, uint8_t* code, int64_t count,   \
                                      const int64_t* cuts, int num_cuts) {                                 \
    divide_any<T>(items, out, code, count, cuts, num_cuts);                                                \
  }
POINTGRAD_DIVIDE(float)
POINTGRAD_DIVIDE(double)
#undef POINTGRAD_DIVIDE

// Orders the items as the leaves of a kd-tree of whole blocks and whole nodes, in `items` when `home`, else in `spare`.
template <class T> void arrange(Item<T>* items, Item<T>* spare, uint8_t* code, int64_t count, bool home) {
  if (count <= kBlock) {
    if (!home) std::copy(items, items + count, spare);
    return;
  }
  const int64_t blocks = (count + kBlock - 1) / kBlock, unit = blocks > kFan ? kFan : 1;
  const int64_t units = (blocks + unit - 1) / unit;
  const int ways = unit > 1 && units >= kWays ? kWays : 2;
  int64_t cuts[kWays + 1] = {};
  for (int w = 1; w < ways; ++w) cuts[w] = (units * w + ways - 1) / ways * unit * kBlock;
  cuts[ways] = count;
  divide(items, spare, code, count, cuts + 1, ways - 1);
  for (int w = 0; w < ways; ++w)
    arrange<T>(spare + cuts[w], items + cuts[w], code, cuts[w + 1] - cuts[w], !home);
}

template <class T> Tree<T> build(const Item<T>* items, int64_t count, int64_t m) {
  const Bits<T> infinity = to_bits<T>(std::numeric_limits<T>::infinity());
  Tree<T> tree;
  tree.num_blocks = (count + kBlock - 1) / kBlock;
  tree.num_nodes = (tree.num_blocks + kFan - 1) / kFan;
  tree.num_groups = (tree.num_nodes + kFan - 1) / kFan;
  tree.blocks.reset(new Cloud<T, kBlock>[tree.num_blocks]);
  tree.queues.reset(new Queue[tree.num_blocks]());
  tree.nodes.reset(new Boxes<T>[tree.num_nodes]());  // an unused box keeps the bound 0, and nothing reaches it
  tree.groups.reset(new Boxes<T>[tree.num_groups]());
  tree.sites.reset(new T[3 * m]);
  tree.node_list.reset(new int32_t[tree.num_nodes + kFan]);
  tree.block_list.reset(new int32_t[tree.num_blocks + kFan]);
  for (int64_t id = 0; id < tree.num_blocks; ++id) {
    Cloud<T, kBlock>& block = tree.blocks[id];
    for (int i = 0; i < kBlock; ++i) {
      // Copies of the last point fill up the last block; their mind of 0 never wins.
      const int64_t k = id * kBlock + i;
      const Item<T>& item = items[std::min(k, count - 1)];
      block.x[i] = item.at[0], block.y[i] = item.at[1], block.z[i] = item.at[2];
      block.mind[i] = k < count ? infinity : 0;
      block.index[i] = Bits<T>(item.index);
    }
    const T* axes[3] = {block.x, block.y, block.z};
    for (int a = 0; a < 3; ++a) {
      T lo = axes[a][0], hi = lo;
      for (int i = 1; i < kBlock; ++i) lo = std::min(lo, axes[a][i]), hi = std::max(hi, axes[a][i]);
      tree.nodes[id / kFan].lo[a][id % kFan] = lo;
      tree.nodes[id / kFan].hi[a][id % kFan] = hi;
    }
    tree.nodes[id / kFan].bound[id % kFan] = infinity;
  }
  for (int64_t node = 0; node < tree.num_nodes; ++node) {
    const int64_t used = std::min<int64_t>(kFan, tree.num_blocks - node * kFan);
    for (int a = 0; a < 3; ++a) {
      const T *lo = tree.nodes[node].lo[a], *hi = tree.nodes[node].hi[a];
      tree.groups[node / kFan].lo[a][node % kFan] = *std::min_element(lo, lo + used);
      tree.groups[node / kFan].hi[a][node % kFan] = *std::max_element(hi, hi + used);
    }
    refresh<T>(tree, node);
  }
  return tree;
}

}  // namespace fps
}  // namespace pointgrad
