// Points grouped by voxel: a radix sort of as many bits as the cloud's extent in voxels needs.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

struct Item {
  uint64_t key;
  int64_t point;
};

// The place of a point on the grid; false where it has none that fits in 64 bits.
template <class T> POINTGRAD_INLINE bool voxel_of(const T* point, const T* edge, int64_t* voxel) {
  bool fits = true;
  for (int axis = 0; axis < 3; ++axis) {
    const T whole = std::floor(point[axis] / edge[axis]);
    const bool inside = whole >= T(-0x1p63) && whole < T(0x1p63);  // false for NaN
    voxel[axis] = inside ? static_cast<int64_t>(whole) : 0;
    fits = fits && inside;
  }
  return fits;
}

int bit_width(uint64_t value) { return value == 0 ? 0 : 64 - __builtin_clzll(value); }

// Stable, by the lowest `bits` of the key. Returns where the result is: `items` or `other`.
Item* radix_sort(Item* items, Item* other, int64_t count, int bits) {
  constexpr int kDigit = 11;
  std::vector<int64_t> next(size_t{1} << kDigit);
  for (int shift = 0; shift < bits; shift += kDigit) {
    std::fill(next.begin(), next.end(), 0);
    const uint64_t mask = next.size() - 1;
    for (int64_t i = 0; i < count; ++i) ++next[items[i].key >> shift & mask];
    int64_t sum = 0;
    for (int64_t& entry : next) sum += std::exchange(entry, sum);
    for (int64_t i = 0; i < count; ++i) other[next[items[i].key >> shift & mask]++] = items[i];
    std::swap(items, other);
  }
  return items;
}

// Numbers the voxels of one cloud from 0, in the order of their places. Returns how many there are.
template <class T>
int64_t group_cloud(int64_t* inverse, int64_t* first, int64_t* count, Item* items, Item* other, const T* points,
                    int64_t size, const T* edge) {
  int64_t low[3], high[3], voxel[3];
  std::fill(low, low + 3, std::numeric_limits<int64_t>::max());
  std::fill(high, high + 3, std::numeric_limits<int64_t>::min());
  int64_t valid = 0;
  for (int64_t i = 0; i < size; ++i) {
    inverse[i] = -1;
    if (!voxel_of(points + 3 * i, edge, voxel)) continue;
    for (int axis = 0; axis < 3; ++axis) {
      low[axis] = std::min(low[axis], voxel[axis]);
      high[axis] = std::max(high[axis], voxel[axis]);
    }
    items[valid++].point = i;
  }
  if (valid == 0) return 0;
  int bits[3];
  for (int axis = 0; axis < 3; ++axis)
    bits[axis] = bit_width(static_cast<uint64_t>(high[axis]) - static_cast<uint64_t>(low[axis]));
  const int total = bits[0] + bits[1] + bits[2];
  const auto same = [&](int64_t a, int64_t b) {
    int64_t other_voxel[3];
    voxel_of(points + 3 * a, edge, voxel);
    voxel_of(points + 3 * b, edge, other_voxel);
    return std::equal(voxel, voxel + 3, other_voxel);
  };
  if (total <= 64) {
    for (int64_t n = 0; n < valid; ++n) {
      voxel_of(points + 3 * items[n].point, edge, voxel);
      uint64_t key = 0;
      for (int axis = 0; axis < 3; ++axis) {
        // A shift by 64 is only asked for where the other two axes have no extent.
        key = bits[axis] < 64 ? key << bits[axis] : 0;
        key |= static_cast<uint64_t>(voxel[axis]) - static_cast<uint64_t>(low[axis]);
      }
      items[n].key = key;
    }
    items = radix_sort(items, other, valid, total);
  } else {  // spread over more than 64 bits: rare, so only right
    std::stable_sort(items, items + valid, [&](const Item& a, const Item& b) {
      int64_t left[3], right[3];
      voxel_of(points + 3 * a.point, edge, left);
      voxel_of(points + 3 * b.point, edge, right);
      return std::lexicographical_compare(left, left + 3, right, right + 3);
    });
    uint64_t key = 0;
    for (int64_t n = 0; n < valid; ++n) {
      if (n > 0 && !same(items[n - 1].point, items[n].point)) ++key;
      other[n] = {key, items[n].point};
    }
    items = other;
  }
  int64_t voxels = 0;
  for (int64_t n = 0; n < valid; ++n) {
    const int64_t point = items[n].point;
    if (n == 0 || items[n].key != items[n - 1].key) {
      first[voxels] = point;
      count[voxels++] = 0;
    }
    ++count[voxels - 1];
    inverse[point] = voxels - 1;
  }
  return voxels;
}

void voxel_groups(address inverse, address first, address count, address occupied, address scratch, address points,
                  int dtype, bool packed, int64_t batch, int64_t num_points, address sizes, double x, double y,
                  double z, int threads) {
  nb::gil_scoped_release release;
  const int64_t* given = at<const int64_t>(sizes);
  const auto begin_of = [&](int64_t b) { return packed ? (given ? given[b] : 0) : b * num_points; };
  const auto size_of = [&](int64_t b) {
    if (given == nullptr) return num_points;
    return packed ? given[b + 1] - given[b] : given[b];
  };
  int64_t *inverses = at<int64_t>(inverse), *firsts = at<int64_t>(first), *counts = at<int64_t>(count);
  int64_t* voxels = at<int64_t>(occupied);
  const int64_t rows = packed ? num_points : batch * num_points;
  Item *items = at<Item>(scratch), *other = items + rows;
  const auto run = [&](auto tag) {
    using T = decltype(tag);
    const T edge[3] = {static_cast<T>(x), static_cast<T>(y), static_cast<T>(z)};
    run_tasks(batch, threads, [&](int64_t b) {
      const int64_t begin = begin_of(b), size = size_of(b);
      voxels[b] = group_cloud<T>(inverses + begin, firsts + begin, counts + begin, items + begin, other + begin,
                                 at<const T>(points) + 3 * begin, size, edge);
      if (packed) return;
      std::fill(inverses + begin + size, inverses + begin + num_points, int64_t{-1});
      std::fill(firsts + begin + voxels[b], firsts + begin + num_points, int64_t{-1});
      std::fill(counts + begin + voxels[b], counts + begin + num_points, int64_t{0});
    });
  };
  dtype == 1 ? run(double{}) : run(float{});
  if (!packed) return;
  // Count through all clouds, and close the gaps between them.
  std::vector<int64_t> before(batch + 1, 0);
  for (int64_t b = 0; b < batch; ++b) {
    before[b + 1] = before[b] + voxels[b];
    std::memmove(counts + before[b], counts + begin_of(b), voxels[b] * sizeof(int64_t));
    for (int64_t v = 0; v < voxels[b]; ++v) firsts[before[b] + v] = firsts[begin_of(b) + v] + begin_of(b);
  }
  std::fill(firsts + before[batch], firsts + num_points, int64_t{-1});
  std::fill(counts + before[batch], counts + num_points, int64_t{0});
  run_tasks(batch, threads, [&](int64_t b) {
    int64_t* own = inverses + begin_of(b);
    for (int64_t i = 0; i < size_of(b); ++i) own[i] = own[i] < 0 ? -1 : own[i] + before[b];
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) { module.def("voxel_groups", &pointgrad::voxel_groups); }
