// The innermost loops: the points of a leaf, and the leaves of a list, that are near enough to a query.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "found.h"
#include "numbers.h"
#include "tree.h"
#include "vectors.h"

namespace pointgrad {
namespace neighbors {

// Leaves that some query of a group may need, with their boxes.
template <class T> struct List {
  int64_t count = 0;
  std::vector<int32_t> leaf;
  std::vector<Node<T>> boxes;

  void make_room(int64_t size) {
    if (int64_t(leaf.size()) >= size) return;
    leaf.resize(2 * size);
    boxes.resize(ceil_div(2 * size, kFan));
  }

  // The leaf with the smallest index comes first. Among many equal points it holds the best ones, so that all other
  // leaves are skipped; in another order each leaf might improve on the one before.
  void sort_by_index() {
    order_.resize(count);
    for (int64_t n = 0; n < count; ++n) order_[n] = {boxes[n / kFan].first[n % kFan], n};
    std::sort(order_.begin(), order_.end());
    other_leaf_.resize(leaf.size());
    other_boxes_.resize(boxes.size());
    for (int64_t n = 0; n < count; ++n) {
      const int64_t from = order_[n].second;
      const Node<T>& source = boxes[from / kFan];
      Node<T>& target = other_boxes_[n / kFan];
      other_leaf_[n] = leaf[from];
      target.first[n % kFan] = source.first[from % kFan];
      for (int a = 0; a < kAxes; ++a) {
        target.low[a][n % kFan] = source.low[a][from % kFan];
        target.high[a][n % kFan] = source.high[a][from % kFan];
      }
    }
    leaf.swap(other_leaf_);
    boxes.swap(other_boxes_);
  }

 private:
  std::vector<std::pair<Index<T>, int64_t>> order_;
  std::vector<int32_t> other_leaf_;
  std::vector<Node<T>> other_boxes_;
};

// Squared distances of the query to sixteen points, summed in the order of the axes.
template <class T> POINTGRAD_INLINE void distances(const T* points, int dims, const T* query, T* out) {
  T sum[kFan] = {};
  for (int a = 0; a < dims; ++a) {
    const T q = query[a];
    POINTGRAD_LANES
    for (int l = 0; l < kFan; ++l) {
      const T d = points[a * kFan + l] - q;
      sum[l] += d * d;
    }
  }
  POINTGRAD_LANES
  for (int l = 0; l < kFan; ++l) out[l] = sum[l];
}

// Squared distances from the box [low, high] to sixteen other boxes. They are rounded like the distance of two points,
// so they never exceed the distance of two points in the boxes.
template <class T> POINTGRAD_INLINE void gaps(const Node<T>& boxes, const T* low, const T* high, T* out) {
  T sum[kFan] = {};
  for (int a = 0; a < kAxes; ++a) {
    const T lo = low[a], hi = high[a];
    POINTGRAD_LANES
    for (int l = 0; l < kFan; ++l) {
      const T above = boxes.low[a][l] - hi, below = lo - boxes.high[a][l];
      // At most one of the two is positive.
      const T gap = (above > T(0) ? above : T(0)) + (below > T(0) ? below : T(0));
      sum[l] += gap * gap;
    }
  }
  POINTGRAD_LANES
  for (int l = 0; l < kFan; ++l) out[l] = sum[l];
}

// Adds the useful candidates among sixteen points, given as `dims` rows of coordinates and a row of indices.
template <class T> POINTGRAD_INLINE void scan(const T* points, int dims, const T* query, Found<T>& found) {
  T d[kFan];
  distances<T>(points, dims, query, d);
  const Index<T>* index = reinterpret_cast<const Index<T>*>(points + dims * kFan);
  const auto [low, bound, tie_from, tie] = found.limits;
  Index<T> bits = 0;
  POINTGRAD_LANES
  for (int l = 0; l < kFan; ++l) {
    const bool hit = (d[l] <= bound) & (d[l] >= low) & ((d[l] < tie_from) | (index[l] <= tie));
    bits |= hit ? Index<T>(1) << l : 0;
  }
  int64_t n = found.count;
  for (uint32_t rest = uint32_t(bits); rest != 0; rest &= rest - 1) {
    const int l = __builtin_ctz(rest);
    found.distance2[n] = d[l], found.index[n] = index[l];
    ++n;
  }
  found.count = n;
}

// Both continue from `at` until the end, or until `found` cannot hold another leaf, and return where to continue.

template <class T>
POINTGRAD_CLONES int64_t scan_run_any(const T* leaves, int64_t count, int dims, const T* query, int64_t at,
                                      Found<T>& found) {
  while (at < count && found.count <= found.capacity) scan<T>(leaves + at++ * (dims + 1) * kFan, dims, query, found);
  return at;
}

template <class T>
POINTGRAD_CLONES int64_t scan_list_any(const Leaf<T>* leaves, const List<T>& list, const T* query, int64_t at,
                                       Found<T>& found) {
  while (at < list.count) {
    const Node<T>& boxes = list.boxes[at / kFan];
    T gap[kFan];
    gaps<T>(boxes, query, query, gap);
    const int64_t end = std::min(list.count, (at / kFan + 1) * kFan);
    for (; at < end; ++at) {
      const int l = int(at % kFan);
      const Limits<T>& limits = found.limits;
      if (!(gap[l] <= limits.bound) || (gap[l] >= limits.tie_from && boxes.first[l] > limits.tie)) continue;
      scan<T>(leaves[list.leaf[at]].at[0], kAxes, query, found);
      if (found.count > found.capacity) return at + 1;
    }
  }
  return at;
}

#if defined(POINTGRAD_V4)
// The lanes whose distance, and index if distances are tied, are within the limits.
template <class T, class V = typename VectorsOf<T>::type>
POINTGRAD_V4_INLINE typename V::Mask of_use(typename V::Vector d, const Index<T>* index, const Limits<T>& limits) {
  using Mask = typename V::Mask;
  const Mask near = V::at_most(Mask(-1), d, V::all(limits.bound));
  return Mask(V::less(near, d, V::all(limits.tie_from)) | V::at_most(near, _mm512_load_si512(index), limits.tie));
}

template <class T, class V = typename VectorsOf<T>::type>
POINTGRAD_V4_INLINE int64_t scan_v4(const T* points, int dims, const T* query, const Limits<T>& limits, int64_t n,
                                    T* distance2, Index<T>* to) {
  for (int l = 0; l < kFan; l += V::kLanes) {
    typename V::Vector d = V::all(0);
    for (int a = 0; a < dims; ++a) {
      const typename V::Vector difference = V::load(points + a * kFan + l) - V::all(query[a]);
      d += difference * difference;
    }
    const Index<T>* index = reinterpret_cast<const Index<T>*>(points + dims * kFan) + l;
    const typename V::Mask hit = V::at_most(of_use<T>(d, index, limits), V::all(limits.low), d);
    V::keep(distance2 + n, hit, d);
    V::keep(to + n, hit, _mm512_load_si512(index));
    n += __builtin_popcount(hit);
  }
  return n;
}

template <class T>
POINTGRAD_V4 int64_t scan_run_v4(const T* leaves, int64_t count, int dims, const T* query, int64_t at,
                                 Found<T>& found) {
  T* distance2 = found.distance2.data();
  Index<T>* index = found.index.data();
  const Limits<T> limits = found.limits;  // a copy, so that stores cannot alias it
  const int64_t capacity = found.capacity;
  int64_t n = found.count;
  while (at < count && n <= capacity)
    n = scan_v4<T>(leaves + at++ * (dims + 1) * kFan, dims, query, limits, n, distance2, index);
  found.count = n;
  return at;
}

template <class T>
POINTGRAD_V4 int64_t scan_list_v4(const Leaf<T>* leaves, const List<T>& list, const T* at_query, int64_t at,
                                  Found<T>& found) {
  using V = typename VectorsOf<T>::type;
  T* distance2 = found.distance2.data();
  Index<T>* index = found.index.data();
  const Limits<T> limits = found.limits;
  const T query[kAxes] = {at_query[0], at_query[1], at_query[2]};
  const int64_t count = list.count, capacity = found.capacity;
  int64_t n = found.count;
  while (at < count) {
    const int64_t block = at / kFan;
    const Node<T>& boxes = list.boxes[block];
    uint32_t near = 0;
    for (int l = 0; l < kFan; l += V::kLanes) {
      typename V::Vector gap = V::all(0);
      for (int a = 0; a < kAxes; ++a) {
        const typename V::Vector q = V::all(query[a]), zero = V::all(0);
        const typename V::Vector above = V::load(boxes.low[a] + l) - q, below = q - V::load(boxes.high[a] + l);
        const typename V::Vector larger = above > below ? above : below;
        const typename V::Vector outside = larger > zero ? larger : zero;
        gap += outside * outside;
      }
      near |= uint32_t(of_use<T>(gap, boxes.first + l, limits)) << l;
    }
    near &= ~0u << (at % kFan);
    if (count - block * kFan < kFan) near &= (1u << (count - block * kFan)) - 1;
    for (; near != 0; near &= near - 1) {
      at = block * kFan + __builtin_ctz(near);
      n = scan_v4<T>(leaves[list.leaf[at]].at[0], kAxes, query, limits, n, distance2, index);
      if (n > capacity) {
        found.count = n;
        return at + 1;
      }
    }
    at = (block + 1) * kFan;
  }
  found.count = n;
  return count;
}
#else
#define scan_run_v4 scan_run_any
#define scan_list_v4 scan_list_any
#endif

// Adds the useful candidates among `count` consecutive leaves.
template <class T>
POINTGRAD_INLINE void scan_run(const T* leaves, int64_t count, int dims, const T* query, Found<T>& found) {
  for (int64_t at = 0;;) {
    at = (has_v4() ? scan_run_v4<T> : scan_run_any<T>)(leaves, count, dims, query, at, found);
    if (found.count > found.capacity) found.cut(false);
    if (at >= count) return;
  }
}

// Adds the useful candidates among the leaves of the list.
template <class T>
POINTGRAD_INLINE void scan_list(const Leaf<T>* leaves, const List<T>& list, const T* query, Found<T>& found) {
  for (int64_t at = 0;;) {
    at = (has_v4() ? scan_list_v4<T> : scan_list_any<T>)(leaves, list, query, at, found);
    if (found.count > found.capacity) found.cut(false);
    if (at >= list.count) return;
  }
}

}  // namespace neighbors
}  // namespace pointgrad
