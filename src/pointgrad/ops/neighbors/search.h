// The neighbors of a group of queries: through a tree, which nearby queries traverse together, or among all points.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "found.h"
#include "numbers.h"
#include "scan.h"
#include "tree.h"

namespace pointgrad {
namespace neighbors {

// The greatest of `count` values, a multiple of sixteen, that are less than `limit`; at least `least`.
template <class T> POINTGRAD_INLINE T greatest_below(const T* values, int64_t count, T limit, T least) {
  T best[kFan];
  std::fill(best, best + kFan, least);
  for (int64_t i = 0; i < count; i += kFan) {
    POINTGRAD_LANES
    for (int l = 0; l < kFan; ++l) {
      const T v = values[i + l];
      best[l] = (v > best[l]) & (v < limit) ? v : best[l];
    }
  }
  return *std::max_element(best, best + kFan);
}

// An upper bound of the k-th smallest of `count` distances, a multiple of sixteen. Distances outside [low, most] are
// ignored.
template <class T> POINTGRAD_INLINE T kth_smallest(T* d, int64_t count, int64_t k, T low, T most) {
  constexpr T kNone = std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < count; ++i) d[i] = (d[i] <= most) & (d[i] >= low) ? d[i] : kNone;
  if (count > 128) {
    // A histogram: the lowest bins that together hold k distances.
    constexpr int kBins = 128;
    const T top = greatest_below<T>(d, count, kNone, T(1e-30)), scale = T(kBins) / 2 / top;
    uint32_t counts[kBins + 1] = {};
    for (int64_t i = 0; i < count; ++i) ++counts[d[i] * scale < T(kBins) ? int(d[i] * scale) : kBins];
    int last = 0;
    for (int64_t sum = counts[0]; sum < k && last < kBins; sum += counts[last]) ++last;
    return last == kBins ? most : std::min(most, T(last + 1) / scale * T(1.0001));
  }
  T best[kFan];
  std::fill(best, best + kFan, most);
  for (int64_t block = 0; block < count; block += kFan) {
    Index<T> sum[kFan] = {};
    for (int64_t j = 0; j < count; ++j) {
      const T dj = d[j];
      POINTGRAD_LANES
      for (int l = 0; l < kFan; ++l) sum[l] += Index<T>(dj <= d[block + l]);
    }
    POINTGRAD_LANES
    for (int l = 0; l < kFan; ++l) {
      const T di = d[block + l];
      best[l] = (sum[l] >= Index<T>(k)) & (di < best[l]) ? di : best[l];
    }
  }
  return *std::min_element(best, best + kFan);
}

// The number of leaves that are scanned first, to bound the k-th distance.
inline int64_t leaves_around(int64_t k) {
  int64_t leaves = 2;
  while (2 * leaves * kFan < 3 * k) leaves *= 2;
  return leaves;
}

template <class T> struct Scratch {
  std::vector<Found<T>> found;  // candidates of several queries at a time, if few are kept of each
  List<T> list;
  std::vector<T> around;
  std::vector<int64_t> stack;
  std::vector<Index<T>> equal;  // the smallest indices of points that equal the queries, a heap with the largest first

  Scratch(const Asked<T>& asked, int64_t num_points, int64_t first_point, int64_t queries)
      : found(std::min(asked.k, num_points) <= 512 ? queries : 1, Found<T>(asked, num_points, first_point)) {}
};

// A leaf that contains the point or is near it.
template <class T> POINTGRAD_INLINE int64_t nearest_leaf(const Tree<T>& tree, const T* point) {
  int64_t at = 0;
  for (int64_t level = tree.root->num_levels - 1; level >= 0; --level) {
    T gap[kFan];
    gaps<T>(tree.nodes[tree.root->level[level] + at], point, point, gap);
    at = at * kFan + (std::min_element(gap, gap + kFan) - gap);
  }
  return std::min(at, tree.num_leaves() - 1);  // if all children are infinitely far, an empty one may come first
}

// Adds the points of a leaf to the k smallest indices.
template <class T> void add_equal(const Leaf<T>& leaf, int64_t k, std::vector<Index<T>>& smallest) {
  for (int i = 0; i < kFan && leaf.index[i] >= 0; ++i) {
    if (int64_t(smallest.size()) == k) {
      if (leaf.index[i] > smallest.front()) continue;
      std::pop_heap(smallest.begin(), smallest.end());
      smallest.pop_back();
    }
    smallest.push_back(leaf.index[i]);
    std::push_heap(smallest.begin(), smallest.end());
  }
}

// Whether all points of a child are at `point`.
template <class T> POINTGRAD_INLINE bool is_at(const Node<T>& node, int child, const T* point) {
  for (int a = 0; a < kAxes; ++a)
    if (node.low[a][child] != point[a] || node.high[a][child] != point[a]) return false;
  return true;
}

// Lists the leaves no farther from the box [low, high] than `reach`. If the box is a point, leaves of which no point is
// among the k smallest indices of points that equal it may be left out: the time is linear in the number of equal points.
template <bool IsPoint, class T>
POINTGRAD_INLINE void list_leaves(const Tree<T>& tree, const T* low, const T* high, T reach, int64_t k,
                                  Scratch<T>& scratch) {
  List<T>& list = scratch.list;
  std::vector<int64_t>& stack = scratch.stack;
  std::vector<Index<T>>& equal = scratch.equal;
  Index<T> most = std::numeric_limits<Index<T>>::max();  // larger indices are not needed
  const auto needed = [&](const Node<T>& node, int l, T gap) {
    return gap <= reach && (!IsPoint || node.first[l] <= most);
  };
  list.count = 0;
  equal.clear();
  stack.assign(1, tree.root->num_levels - 1);  // level + kMostLevels * node
  while (!stack.empty()) {
    const int64_t level = stack.back() % kMostLevels, at = stack.back() / kMostLevels;
    stack.pop_back();
    const Node<T>& node = tree.nodes[tree.root->level[level] + at];
    T gap[kFan];
    gaps<T>(node, low, high, gap);
    if (level > 0) {
      for (int l = kFan - 1; l >= 0; --l)  // the first child is popped first: among equal points it has the smallest indices
        if (needed(node, l, gap[l])) stack.push_back(level - 1 + kMostLevels * (at * kFan + l));
      continue;
    }
    list.make_room(list.count + kFan);
    int64_t n = list.count;
    for (int l = 0; l < kFan; ++l) {
      if (!needed(node, l, gap[l])) continue;
      list.leaf[n] = int32_t(at * kFan + l);
      Node<T>& boxes = list.boxes[n / kFan];
      boxes.first[n % kFan] = node.first[l];
      for (int a = 0; a < kAxes; ++a)
        boxes.low[a][n % kFan] = node.low[a][l], boxes.high[a][n % kFan] = node.high[a][l];
      ++n;
      if (IsPoint && is_at(node, l, low)) {
        add_equal(tree.leaves[at * kFan + l], k, equal);
        if (int64_t(equal.size()) == k) most = equal.front();
      }
    }
    list.count = n;
  }
}

// The first point and the first query of a cloud.
struct Place {
  int64_t base;         // is added to every index that is returned
  int64_t first_point;  // counted through all clouds
  int64_t first_query;
};

// Searches for the queries in one leaf of their tree; `near` is a leaf of points near them.
template <class T>
POINTGRAD_INLINE void search_group(const Tree<T>& tree, const Tree<T>& queries, int64_t leaf, int64_t near,
                                   const Asked<T>& asked, const Place& place, const Results<T>& output,
                                   Scratch<T>& scratch) {
  const Leaf<T>& group = queries.leaves[leaf];
  const int size = int(std::min<int64_t>(kFan, queries.root->num_finite - leaf * kFan));
  T query[kFan][kAxes], low[kAxes], high[kAxes], bound[kFan];
  for (int a = 0; a < kAxes; ++a) {
    low[a] = queries.nodes[leaf / kFan].low[a][leaf % kFan];
    high[a] = queries.nodes[leaf / kFan].high[a][leaf % kFan];
    for (int q = 0; q < kFan; ++q) query[q][a] = group.at[a][q];
  }
  T reach = asked.radius2;
  std::fill(bound, bound + kFan, reach);
  scratch.list.count = 0;
  if (asked.select == Select::nearest && asked.k <= tree.root->num_finite) {
    const int64_t around = std::min(leaves_around(asked.k), tree.num_leaves());
    const int64_t first = std::min(near / around * around, tree.num_leaves() - around);
    scratch.around.resize(around * kFan);
    T* d = scratch.around.data();
    reach = T(-1);
    for (int q = 0; q < size; ++q) {
      for (int64_t i = 0; i < around; ++i) distances<T>(tree.leaves[first + i].at[0], kAxes, query[q], d + i * kFan);
      bound[q] = kth_smallest<T>(d, around * kFan, asked.k, asked.min_radius2, asked.radius2);
      reach = std::max(reach, bound[q]);
    }
  }
  const bool takes_smallest = asked.select != Select::random && !(asked.min_radius2 > 0);
  if (tree.root->num_finite > 0) {
    if (takes_smallest && std::equal(low, low + kAxes, high)) {
      list_leaves<true, T>(tree, low, high, reach, asked.k, scratch);
    } else {
      list_leaves<false, T>(tree, low, high, reach, asked.k, scratch);
    }
  }
  constexpr int64_t kMany = 256;  // leaves, more than a typical neighborhood has
  if (scratch.list.count > kMany) scratch.list.sort_by_index();
  // Each step runs for all queries: all steps of one query would wait for the stores of the step before.
  const int step = int(scratch.found.size());
  for (int begin = 0; begin < size; begin += step) {
    const int end = std::min(begin + step, size);
    for (int q = begin; q < end; ++q) {
      Found<T>& found = scratch.found[q - begin];
      found.start(place.first_query + group.index[q], bound[q]);
      scan_list<T>(tree.leaves, scratch.list, query[q], found);
    }
    for (int q = begin; q < end; ++q) scratch.found[q - begin].cut(true);
    for (int q = begin; q < end; ++q) {
      const Found<T>& found = scratch.found[q - begin];
      output.write(place.first_query + group.index[q], place.base, found.distance2.data(), found.index.data(),
                   found.count);
    }
  }
}

// Searches for the queries in the leaves [begin, end) of their own tree, which may be that of the points.
template <class T>
POINTGRAD_CLONES void search_tree(const Tree<T>& tree, const Tree<T>& queries, int64_t begin, int64_t end,
                                  const Asked<T>& asked, const Place& place, const Results<T>& output) {
  Scratch<T> scratch(asked, tree.root->num_finite, place.first_point, kFan);
  const bool same = tree.leaves == queries.leaves;
  for (int64_t leaf = begin; leaf < end; ++leaf) {
    T middle[kAxes];
    const Node<T>& node = queries.nodes[leaf / kFan];
    for (int a = 0; a < kAxes; ++a) middle[a] = node.low[a][leaf % kFan] / 2 + node.high[a][leaf % kFan] / 2;
    search_group<T>(tree, queries, leaf, same ? leaf : nearest_leaf<T>(tree, middle), asked, place, output, scratch);
  }
}

// Compares the queries [begin, end) of (m, dims) with all points (n, dims), copied into leaves piece by piece.
constexpr int64_t kMostQueries = 64;
template <class T>
POINTGRAD_CLONES void search_all(const T* points, int64_t n, const T* queries, int64_t begin, int64_t end, int dims,
                                 const Asked<T>& asked, const Place& place, const Results<T>& output) {
  constexpr int64_t kLeaves = 128;
  const int64_t stride = (dims + 1) * kFan;
  Scratch<T> scratch(asked, n, place.first_point, end - begin);
  std::vector<T> memory(kLeaves * stride + 64 / sizeof(T));
  T* leaves = memory.data();
  while (reinterpret_cast<uintptr_t>(leaves) % 64 != 0) ++leaves;
  const int64_t step = int64_t(scratch.found.size());
  for (; begin < end; begin += step) {
    const int64_t count = std::min(step, end - begin);
    for (int64_t first = 0; first < n || first == 0; first += kLeaves * kFan) {
      const int64_t num_leaves = std::min(kLeaves, ceil_div(n - first, kFan));
      for (int64_t i = 0; i < num_leaves * kFan; ++i) {
        T* to = leaves + i / kFan * stride + i % kFan;
        for (int a = 0; a < dims; ++a)
          to[a * kFan] = first + i < n ? points[(first + i) * dims + a] : std::numeric_limits<T>::quiet_NaN();
        to[dims * kFan] = bit_cast<T>(Index<T>(first + i));
      }
      for (int64_t q = 0; q < count; ++q) {
        const T* query = queries + (begin + q) * dims;
        Found<T>& found = scratch.found[q];
        if (first == 0) {
          T bound = asked.radius2;
          const int64_t around = leaves_around(asked.k);
          if (asked.select == Select::nearest && around <= num_leaves) {
            scratch.around.resize(around * kFan);
            T* d = scratch.around.data();
            for (int64_t i = 0; i < around; ++i) distances<T>(leaves + i * stride, dims, query, d + i * kFan);
            bound = kth_smallest<T>(d, around * kFan, asked.k, asked.min_radius2, asked.radius2);
          }
          found.start(place.first_query + begin + q, bound);
        }
        scan_run<T>(leaves, num_leaves, dims, query, found);
      }
    }
    for (int64_t q = 0; q < count; ++q) {
      Found<T>& found = scratch.found[q];
      found.cut(true);
      output.write(place.first_query + begin + q, place.base, found.distance2.data(), found.index.data(), found.count);
    }
  }
}

}  // namespace neighbors
}  // namespace pointgrad
