// The kd-tree of farthest point sampling (farthest.h): sixteen blocks make a node, sixteen nodes a group. Each has a
// bounding box and an upper bound of the squared distances of its points to the nearest pick.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "kdtree.h"
#include "numbers.h"

namespace pointgrad {
namespace fps {

using namespace kdtree;

constexpr int kBlock = 64;  // points of a block, which is a leaf of the tree
constexpr int kQueue = 15;  // with the count, one cache line

// Non-negative floats are ordered like their bits, and only integer reductions vectorize without -ffast-math.
template <class T> struct BitsOf { using type = int32_t; };
template <> struct BitsOf<double> { using type = int64_t; };
template <class T> using Bits = typename BitsOf<T>::type;

template <class T> POINTGRAD_INLINE Bits<T> to_bits(T value) { return bit_cast<Bits<T>>(value); }
template <class T> POINTGRAD_INLINE T from_bits(Bits<T> bits) { return bit_cast<T>(bits); }

template <class T, int N> struct alignas(64) Cloud {
  T x[N], y[N], z[N];
  Bits<T> min_distance2[N], index[N];
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

template <class T> Tree<T> build(const Item<T>* items, int64_t count, int64_t m) {
  const Bits<T> infinity = to_bits<T>(std::numeric_limits<T>::infinity());
  Tree<T> tree;
  tree.num_blocks = (count + kBlock - 1) / kBlock;
  tree.num_nodes = (tree.num_blocks + kFan - 1) / kFan;
  tree.num_groups = (tree.num_nodes + kFan - 1) / kFan;
  tree.blocks.reset(new Cloud<T, kBlock>[tree.num_blocks]);
  tree.queues.reset(new Queue[tree.num_blocks]());
  tree.nodes.reset(new Boxes<T>[tree.num_nodes]());  // an unused box keeps the bound 0, so nothing reaches it
  tree.groups.reset(new Boxes<T>[tree.num_groups]());
  tree.sites.reset(new T[3 * m]);
  tree.node_list.reset(new int32_t[tree.num_nodes + kFan]);
  tree.block_list.reset(new int32_t[tree.num_blocks + kFan]);
  for (int64_t id = 0; id < tree.num_blocks; ++id) {
    Cloud<T, kBlock>& block = tree.blocks[id];
    for (int i = 0; i < kBlock; ++i) {
      // Copies of the last point fill the last block; their min_distance2 of 0 is never picked.
      const int64_t k = id * kBlock + i;
      const Item<T>& item = items[std::min(k, count - 1)];
      block.x[i] = item.at[0], block.y[i] = item.at[1], block.z[i] = item.at[2];
      block.min_distance2[i] = k < count ? infinity : 0;
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
