// What a search is asked, what it has found so far for one query, and where that goes.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "numbers.h"
#include "tree.h"

namespace pointgrad {
namespace neighbors {

enum class Select { nearest, first, random };

template <class T> struct Asked {
  int64_t k;
  T radius2, min_radius2;  // radius2 is finite: what is infinitely far is no neighbour
  Select select;
  uint64_t seed;
};

template <class T> struct Output {
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

// The random rank of a point for a query, as in reference.py.
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
inline uint64_t mix(uint64_t key) {  // the finaliser of splitmix64
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

// Candidates of one query. Whenever those of another leaf might not fit, they are cut to the `keep` best.
template <class T> class Found {
 public:
  int64_t count, room;
  T low, bound;      // of use are distances from low to bound,
  T tie_from;        // and from this one on
  Index<T> tie;      // only indices up to this one
  std::vector<T> distance2;
  std::vector<Index<T>> index;

  // `first_point` is the number of the cloud's first point, counted through all clouds.
  Found(const Asked<T>& asked, int64_t num_points, int64_t first_point)
      : room(std::max<int64_t>(48, 2 * std::min(asked.k, num_points))),
        distance2(room + 2 * kFan),
        index(room + 2 * kFan),
        asked_(asked),
        keep_(std::min(asked.k, num_points)),
        first_point_(uint64_t(first_point)),
        sorted2_(room + 2 * kFan),
        sorted_(room + 2 * kFan) {}

  // Nothing is found yet of query number `row`, and nothing farther than `bound` will be needed.
  POINTGRAD_INLINE void start(int64_t row, T most) {
    count = 0;
    low = asked_.min_radius2, bound = most;
    tie_from = asked_.select == Select::first ? T(0) : most;
    tie = std::numeric_limits<Index<T>>::max();
    shuffle_ = mix(asked_.seed + uint64_t(row + 1) * kGolden);
  }

  // Keeps the best; they need an order only the last time.
  POINTGRAD_INLINE void cut(bool last) {
    if (asked_.select != Select::nearest) return cut_by_key(last);
    if (count <= kFew) {
      sort_few();
    } else {
      sort_many(last);
    }
    count = std::min(count, keep_);
    if (count < keep_ || count == 0) return;
    bound = tie_from = distance2[count - 1];
    tie = index[count - 1];
  }

 private:
  static constexpr int64_t kFew = 160;  // so many are sorted faster by comparing all with all, in vectors

  struct Candidate {
    uint64_t key;
    T distance2;
    Index<T> index;
  };
  static bool nearer(const Candidate& a, const Candidate& b) {
    return a.distance2 != b.distance2 ? a.distance2 < b.distance2 : a.index < b.index;
  }
  static bool earlier(const Candidate& a, const Candidate& b) { return a.key < b.key; }

  // Each goes to the place that as many are before.
  POINTGRAD_INLINE void sort_few() {
    Index<T> before[kFew + kFan];
    // Without equal distances, which are rare, the places add up.
    if (rank(before, [](T dj, Index<T>, T di, Index<T>) { return dj < di; }) != count * (count - 1) / 2)
      rank(before, [](T dj, Index<T> ij, T di, Index<T> i) { return (dj < di) | ((dj == di) & (ij < i)); });
    for (int64_t i = 0; i < count; ++i) sorted2_[before[i]] = distance2[i], sorted_[before[i]] = index[i];
    distance2.swap(sorted2_);
    index.swap(sorted_);
  }

  // How many are before each; returns the sum.
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

  void sort_many(bool last) {
    many_.resize(count);
    for (int64_t i = 0; i < count; ++i) many_[i] = {0, distance2[i], index[i]};
    keep_least(nearer);
    if (last) std::sort(many_.begin(), many_.begin() + kept_, nearer);
    take_back();
  }

  void cut_by_key(bool last) {
    many_.resize(count);
    for (int64_t i = 0; i < count; ++i) {
      // A rank has 31 bits, and so has an index.
      const uint64_t p = uint64_t(index[i]);
      const uint64_t key = asked_.select == Select::first ? p : mix(shuffle_ + (first_point_ + p + 1) * kGolden) >> 34 << 31 | p;
      many_[i] = {key, distance2[i], index[i]};
    }
    keep_least(earlier);
    if (last) std::sort(many_.begin(), many_.begin() + kept_, asked_.select == Select::first ? earlier : nearer);
    take_back();
    count = kept_;
    if (asked_.select == Select::first && count == keep_ && count > 0) tie = Index<T>(many_[count - 1].key);
  }

  template <class Order> void keep_least(Order order) {
    kept_ = std::min(count, keep_);
    if (kept_ < count) std::nth_element(many_.begin(), many_.begin() + (kept_ - 1), many_.end(), order);
  }

  // The greatest one last, as nth_element and sort leave them.
  void take_back() {
    for (int64_t i = 0; i < kept_; ++i) distance2[i] = many_[i].distance2, index[i] = many_[i].index;
  }

  const Asked<T>& asked_;
  int64_t keep_, kept_;
  uint64_t first_point_, shuffle_;
  std::vector<T> sorted2_;
  std::vector<Index<T>> sorted_;
  std::vector<Candidate> many_;
};

}  // namespace neighbors
}  // namespace pointgrad
