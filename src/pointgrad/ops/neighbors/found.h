// The parameters of a search, the candidates of one query, and the results.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "mixing.h"
#include "numbers.h"
#include "tree.h"
#include "vectors.h"

namespace pointgrad {
namespace neighbors {

enum class Select { nearest, first, random };

template <class T> struct Asked {
  int64_t k;
  T radius2, min_radius2;  // radius2 is finite: a point at an infinite distance is not a neighbor
  Select select;
  uint64_t seed;
};

template <class T> struct Results {
  int64_t k;
  int64_t* index;
  T* distance2;
  int64_t* count;

  // `base` is added to the indices.
  POINTGRAD_INLINE void write(int64_t row, int64_t base, const T* d, const Index<T>* id, int64_t found) const {
    int64_t* to = index + row * k;
    T* to2 = distance2 + row * k;
    for (int64_t i = 0; i < found; ++i) to[i] = base + id[i];
    for (int64_t i = 0; i < found; ++i) to2[i] = d[i];
    std::fill(to + found, to + k, int64_t{-1});
    std::fill(to2 + found, to2 + k, std::numeric_limits<T>::infinity());
    count[row] = found;
  }
  void write_nothing(int64_t row) const { write(row, 0, nullptr, nullptr, 0); }
};

// A distance and its index packed into one number, where a type is wide enough: such numbers sort faster.
template <class T> struct Packed {
  using Key = std::pair<T, Index<T>>;
  static Key pack(T distance2, Index<T> index) { return {distance2, index}; }
  static T distance2(Key key) { return key.first; }
  static Index<T> index(Key key) { return key.second; }
};
template <> struct Packed<float> {
  using Key = uint64_t;
  static Key pack(float distance2, int32_t index) {
    return uint64_t{bit_cast<uint32_t>(distance2)} << 32 | uint32_t(index);
  }
  static float distance2(Key key) { return bit_cast<float>(uint32_t(key >> 32)); }
  static int32_t index(Key key) { return int32_t(uint32_t(key)); }
};

#if defined(POINTGRAD_V4)
// Sorts n <= Count distances with their indices into other memory. Returns the sum of their new places, which is less
// than n (n - 1) / 2 if equal distances were written to the same place. Reads up to Count entries.
template <int Count, class T>
POINTGRAD_V4 int64_t sort_v4(const T* d, const Index<T>* index, int64_t n, T* sorted2, Index<T>* sorted) {
  using V = typename VectorsOf<T>::type;
  constexpr int kVectors = Count / V::kLanes;
  typename V::Vector all[kVectors];
  typename V::Mask there[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const int64_t left = n - v * V::kLanes;
    there[v] = left <= 0 ? 0 : left >= V::kLanes ? typename V::Mask(-1) : typename V::Mask((1u << left) - 1);
    all[v] = V::load_any(d + v * V::kLanes);
  }
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) {
    const typename V::Vector mine = V::all(d[i]);
    int64_t place = 0;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) place += __builtin_popcount(V::less(there[v], all[v], mine));
    sorted2[place] = d[i], sorted[place] = index[i];
    total += place;
  }
  return total;
}
#endif

// The limits within which a candidate improves the result of a query.
template <class T> struct Limits {
  T low, bound;  // range of the squared distance
  T tie_from;    // from this squared distance on, the index must be at most `tie`
  Index<T> tie;
};

// Candidates of one query. When the next leaf might not fit, they are reduced to the `keep` best.
template <class T> class Found {
 public:
  int64_t count = 0, capacity;
  Limits<T> limits{};
  std::vector<T> distance2;
  std::vector<Index<T>> index;

  // `first_point` is the number of the cloud's first point, counted through all clouds.
  Found(const Asked<T>& asked, int64_t num_points, int64_t first_point)
      : capacity(std::max<int64_t>(48, 2 * std::min(asked.k, num_points))),
        distance2(capacity + 2 * kFan),
        index(capacity + 2 * kFan),
        asked_(asked),
        keep_(std::min(asked.k, num_points)),
        first_point_(uint64_t(first_point)),
        sorted2_(capacity + 2 * kFan),
        sorted_(capacity + 2 * kFan) {}

  // Starts the search of query number `row`. Points at a squared distance above `most` are not needed.
  POINTGRAD_INLINE void start(int64_t row, T most) {
    count = 0;
    limits.low = asked_.min_radius2, limits.bound = most;
    limits.tie_from = asked_.select == Select::first ? T(0) : most;
    limits.tie = std::numeric_limits<Index<T>>::max();
    shuffle_ = mix(asked_.seed + uint64_t(row + 1) * kGolden);
  }

  // Keeps the best candidates; the last call also sorts them into the order of the results.
  POINTGRAD_INLINE void cut(bool last) {
    if (asked_.select != Select::nearest) return cut_by_key(last);
    if (count <= kFew) {
      sort_few();
    } else {
      sort_many(last);
    }
    count = std::min(count, keep_);
    if (count < keep_ || count == 0) return;
    limits.bound = limits.tie_from = distance2[count - 1];
    limits.tie = index[count - 1];
  }

 private:
  static constexpr int64_t kFew = 160;  // up to this many, comparing all pairs in vectors is faster than sorting

  // The place of a candidate is the number of candidates before it.
  POINTGRAD_INLINE void sort_few() {
    if (sort_fewer()) {
      distance2.swap(sorted2_);
      index.swap(sorted_);
      return;
    }
    Index<T> before[kFew + kFan];
    // Equal distances, which are rare, show in the sum of the places.
    if (rank(before, [](T dj, Index<T>, T di, Index<T>) { return dj < di; }) != count * (count - 1) / 2)
      rank(before, [](T dj, Index<T> ij, T di, Index<T> i) { return (dj < di) | ((dj == di) & (ij < i)); });
    for (int64_t i = 0; i < count; ++i) sorted2_[before[i]] = distance2[i], sorted_[before[i]] = index[i];
    distance2.swap(sorted2_);
    index.swap(sorted_);
  }

  POINTGRAD_INLINE bool sort_fewer() {
#if defined(POINTGRAD_V4)
    if (count > 64 || !has_v4()) return false;
    const auto sort = count <= 32 ? sort_v4<32, T> : count <= 48 ? sort_v4<48, T> : sort_v4<64, T>;
    const int64_t total = sort(distance2.data(), index.data(), count, sorted2_.data(), sorted_.data());
    return total == count * (count - 1) / 2;
#else
    return false;
#endif
  }

  // Counts the candidates before each one; returns the sum of the counts.
  template <class Before> POINTGRAD_INLINE int64_t rank(Index<T>* before, Before&& is_before) {
    const int64_t n = count;
    const T* d = distance2.data();
    const Index<T>* id = index.data();
    for (int64_t block = 0; block < n; block += kFan) {
      Index<T> sum[kFan] = {};
      for (int64_t j = 0; j < n; ++j) {
        const T dj = d[j];
        const Index<T> ij = id[j];
        POINTGRAD_LANES
        for (int l = 0; l < kFan; ++l) sum[l] += Index<T>(is_before(dj, ij, d[block + l], id[block + l]));
      }
      POINTGRAD_LANES
      for (int l = 0; l < kFan; ++l) before[block + l] = sum[l];
    }
    int64_t total = 0;
    for (int64_t i = 0; i < n; ++i) total += before[i];
    return total;
  }

  // Distributes candidates into buckets of similar distance, which are usually small. Sorts the buckets that hold any of
  // the best candidates, or only the bucket that holds the worst of them.
  void sort_many(bool last) {
    const auto [least, most] = std::minmax_element(distance2.data(), distance2.data() + count);
    const int64_t buckets = count / 4;
    const T low = *least, scale = T(buckets - 1) / std::max(*most - low, std::numeric_limits<T>::min());
    edge_.assign(buckets + 1, 0);
    bucket_.resize(count);
    for (int64_t i = 0; i < count; ++i) {
      const T place = (distance2[i] - low) * scale;
      bucket_[i] = int32_t(place < T(buckets - 1) ? place : T(buckets - 1));  // NaN if all are equal
    }
    for (int64_t i = 0; i < count; ++i) ++edge_[bucket_[i] + 1];
    for (int64_t b = 0; b < buckets; ++b) edge_[b + 1] += edge_[b];
    many_.resize(count);
    for (int64_t i = 0; i < count; ++i) many_[edge_[bucket_[i]]++] = Packed<T>::pack(distance2[i], index[i]);
    for (int64_t b = 0, begin = 0; b < buckets && begin < keep_; begin = edge_[b++])
      if (last || edge_[b] >= keep_) std::sort(many_.begin() + begin, many_.begin() + edge_[b]);
    take_back(std::min(count, keep_));
  }

  void take_back(int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      distance2[i] = Packed<T>::distance2(many_[i]);
      index[i] = Packed<T>::index(many_[i]);
    }
  }

  // Keeps the candidates with the smallest index or random rank.
  void cut_by_key(bool last) {
    const auto key = [&](Index<T> p) {
      if (asked_.select == Select::first) return uint64_t(p);
      return mix(shuffle_ + (first_point_ + uint64_t(p) + 1) * kGolden) >> 34;
    };
    if (count > keep_) {
      keys_.resize(count);
      for (int64_t i = 0; i < count; ++i) keys_[i] = {key(index[i]), {distance2[i], index[i]}};
      const auto earlier = [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first < b.first : a.second.second < b.second.second;
      };
      std::nth_element(keys_.begin(), keys_.begin() + (keep_ - 1), keys_.end(), earlier);
      count = keep_;
      for (int64_t i = 0; i < count; ++i) distance2[i] = keys_[i].second.first, index[i] = keys_[i].second.second;
      if (asked_.select == Select::first) limits.tie = index[count - 1];
    }
    if (!last) return;
    many_.resize(count);
    for (int64_t i = 0; i < count; ++i) many_[i] = Packed<T>::pack(distance2[i], index[i]);
    if (asked_.select == Select::first) {
      std::sort(many_.begin(), many_.end(), [](auto a, auto b) { return Packed<T>::index(a) < Packed<T>::index(b); });
    } else {
      std::sort(many_.begin(), many_.end());
    }
    take_back(count);
  }

  const Asked<T>& asked_;
  int64_t keep_;
  uint64_t first_point_, shuffle_ = 0;
  std::vector<T> sorted2_;
  std::vector<Index<T>> sorted_;
  std::vector<typename Packed<T>::Key> many_;
  std::vector<std::pair<uint64_t, std::pair<T, Index<T>>>> keys_;
  std::vector<int64_t> edge_;
  std::vector<int32_t> bucket_;
};

}  // namespace neighbors
}  // namespace pointgrad
