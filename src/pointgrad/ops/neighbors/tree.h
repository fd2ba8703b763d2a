// The kd-tree of neighbor search, one for each cloud: sixteen points make a leaf, sixteen leaves a node, sixteen nodes
// a node above, up to one root. It consists of bounding boxes and points in memory without pointers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kdtree.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace neighbors {

using namespace kdtree;

constexpr int kMostLevels = 8;

// Indices are as wide as distances, so that both fit the same vectors.
template <class T> struct IndexOf { using type = int32_t; };
template <> struct IndexOf<double> { using type = int64_t; };
template <class T> using Index = typename IndexOf<T>::type;

template <class T> struct alignas(64) Leaf {
  T at[kAxes][kFan];  // NaN beyond the last point
  Index<T> index[kFan];
};

template <class T> struct alignas(64) Node {
  T low[kAxes][kFan], high[kAxes][kFan];  // boxes of the children; an empty one is infinitely far
  Index<T> first[kFan];                   // the smallest index in each child; the largest integer if it is empty
};

// The places of the parts of one cloud's tree, in bytes from the start of the index.
struct alignas(64) Root {
  int64_t leaves, nodes, strays;              // strays: points with a coordinate that is not finite
  int64_t num_points, num_finite, num_levels;
  int64_t level[kMostLevels];                 // the first node of each level, beginning above the leaves
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

// Sets the first node of each level; returns the number of nodes.
inline int64_t lay_levels(int64_t num_leaves, Root& root) {
  int64_t nodes = 0;
  root.num_levels = 0;
  for (int64_t below = num_leaves; below > 1 || (below == 1 && nodes == 0); below = ceil_div(below, kFan)) {
    root.level[root.num_levels++] = nodes;
    nodes += ceil_div(below, kFan);
  }
  return nodes;
}

// Bytes for the tree of a cloud, however many of its points are not finite: sixteen strays take less than a leaf.
// layout.py bounds the sum over all clouds.
template <class T> int64_t tree_bytes(int64_t num_points) {
  Root root;
  const int64_t leaves = ceil_div(num_points, kFan), nodes = lay_levels(leaves, root);
  return leaves * int64_t{sizeof(Leaf<T>)} + nodes * int64_t{sizeof(Node<T>)} + 64;
}

// Sets the places of the parts of a tree, given its begin and its number of finite points.
template <class T> void place_parts(Root& root) {
  const int64_t leaves = ceil_div(root.num_finite, kFan), nodes = lay_levels(leaves, root);
  root.nodes = root.leaves + leaves * int64_t{sizeof(Leaf<T>)};
  root.strays = root.nodes + nodes * int64_t{sizeof(Node<T>)};
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
  arrange_large<T>(items.get(), spare.get(), code.get(), count, kFan, threads);

  const int64_t bottom = ceil_div(num_leaves, kFan);
  parallel_for(bottom, 16, threads, [&](int64_t begin, int64_t end) {
    for (int64_t node = begin; node < end; ++node) {
      for (int child = 0; child < kFan; ++child) {
        const int64_t leaf = node * kFan + child, first = leaf * kFan;
        if (leaf < num_leaves) {
          fill_leaf<T>(items.get() + first, std::min<int64_t>(kFan, count - first), leaves[leaf], nodes[node], child);
        } else {
          nodes[node].first[child] = std::numeric_limits<Index<T>>::max();
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
      here[i / kFan].first[i % kFan] = i < num_below ? *std::min_element(below[i].first, below[i].first + kFan)
                                                     : std::numeric_limits<Index<T>>::max();
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
  std::memset(memory + used, 0, size_t(region_end - used));  // equal points give equal bytes
}

}  // namespace neighbors
}  // namespace pointgrad
