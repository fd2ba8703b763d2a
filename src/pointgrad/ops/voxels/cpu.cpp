// Groups points or integer coordinates by voxel, with a radix sort of as many bits as the cloud's extent in voxels needs.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "clouds.h"
#include "module.h"
#include "numbers.h"
#include "radix.h"
#include "threads.h"

namespace pointgrad {
namespace {

using Voxel = std::array<int64_t, 3>;

constexpr int64_t kPointsPerTask = 1 << 15;

// Points on a grid. `voxel` returns false for a point whose coordinates are not finite or do not fit in 64 bits.
template <class T> struct Points {
  const T* points;
  std::array<T, 3> edge;

  POINTGRAD_INLINE bool voxel(int64_t i, Voxel& voxel) const {
    bool fits = true;
    for (int axis = 0; axis < 3; ++axis) {
      const T whole = std::floor(points[3 * i + axis] / edge[axis]);
      const bool inside = whole >= T(-0x1p63) && whole < T(0x1p63);  // false for NaN
      voxel[axis] = inside ? static_cast<int64_t>(whole) : 0;
      fits = fits && inside;
    }
    return fits;
  }
  Points from(int64_t begin) const { return {points + 3 * begin, edge}; }
};

// Coordinates that are integers already. All rows are valid if `valid` is null.
struct Coordinates {
  const int64_t* coordinates;
  const bool* valid;

  POINTGRAD_INLINE bool voxel(int64_t i, Voxel& voxel) const {
    for (int axis = 0; axis < 3; ++axis) voxel[axis] = coordinates[3 * i + axis];
    return valid == nullptr || valid[i];
  }
  Coordinates from(int64_t begin) const {
    return {coordinates + 3 * begin, valid == nullptr ? nullptr : valid + begin};
  }
};

// The extent of a set of points, in voxels.
struct Extent {
  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  Voxel low{kMost, kMost, kMost}, high{kLeast, kLeast, kLeast};
  int64_t valid = 0;
};

// Marks the points [begin, end) that have a voxel with 0, all others with -1.
template <class Source>
POINTGRAD_CLONES void measure(Extent& extent, int64_t* inverse, const Source source, int64_t begin, int64_t end) {
  Extent mine;
  for (int64_t i = begin; i < end; ++i) {
    Voxel voxel;
    const bool fits = source.voxel(i, voxel);
    inverse[i] = fits ? 0 : -1;
    mine.valid += fits;
    for (int axis = 0; axis < 3; ++axis) {
      mine.low[axis] = fits && voxel[axis] < mine.low[axis] ? voxel[axis] : mine.low[axis];
      mine.high[axis] = fits && voxel[axis] > mine.high[axis] ? voxel[axis] : mine.high[axis];
    }
  }
  extent = mine;
}

// The upper bits of an item are the voxel's coordinates relative to the lowest, the lower bits the point's number.
template <class Source>
POINTGRAD_CLONES void pack(uint64_t* to, const int64_t* inverse, const Source source, const Voxel& low,
                           const std::array<int, 3>& bits, int point_bits, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    if (inverse[i] < 0) continue;
    Voxel voxel;
    source.voxel(i, voxel);
    uint64_t key = 0;
    for (int axis = 0; axis < 3; ++axis)
      key = key << bits[axis] | (static_cast<uint64_t>(voxel[axis]) - static_cast<uint64_t>(low[axis]));
    *to++ = key << point_bits | static_cast<uint64_t>(i);
  }
}

template <class Source> struct Cloud {
  Source source;
  int64_t size;
  // Results: the voxel number of each point; coordinates and number of points of each voxel.
  int64_t *inverse, *coordinates, *count;
  uint64_t *items, *other;  // memory for `size` numbers each
  int threads;

  // Numbers the voxels from 0, in the order of their coordinates. Returns the number of voxels.
  int64_t group() const {
    const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, size / kPointsPerTask));
    std::vector<Extent> found(parts);
    in_parts(size, parts, threads, [&](int64_t part, int64_t begin, int64_t end) {
      measure(found[part], inverse, source, begin, end);
    });
    Extent all;
    for (const Extent& part : found) {
      all.valid += part.valid;
      for (int axis = 0; axis < 3; ++axis) {
        all.low[axis] = std::min(all.low[axis], part.low[axis]);
        all.high[axis] = std::max(all.high[axis], part.high[axis]);
      }
    }
    if (all.valid == 0) return 0;
    const int point_bits = bit_width(size);
    std::array<int, 3> bits;
    int total = 0;
    for (int axis = 0; axis < 3; ++axis) {
      bits[axis] = bit_width(static_cast<uint64_t>(all.high[axis]) - static_cast<uint64_t>(all.low[axis]));
      total += bits[axis];
    }
    if (total + point_bits > 64) return group_by_comparing(all.valid);
    std::vector<int64_t> before(parts + 1, 0);
    for (int64_t part = 0; part < parts; ++part) before[part + 1] = before[part] + found[part].valid;
    in_parts(size, parts, threads, [&](int64_t part, int64_t begin, int64_t end) {
      pack(items + before[part], inverse, source, all.low, bits, point_bits, begin, end);
    });
    const uint64_t* sorted = radix_sort(items, other, all.valid, point_bits, point_bits + total, parts, threads);
    const auto key_of = [&](int64_t n) { return sorted[n] >> point_bits; };
    const auto point_of = [&](int64_t n) { return static_cast<int64_t>(sorted[n] & ((uint64_t{1} << point_bits) - 1)); };
    return number(all.valid, parts, point_of, [&](int64_t n) { return n == 0 || key_of(n) != key_of(n - 1); },
                  [&](int64_t n, int64_t* place) {
                    uint64_t key = key_of(n);
                    for (int axis = 2; axis >= 0; --axis) {
                      const uint64_t mask = (uint64_t{1} << bits[axis]) - 1;
                      place[axis] = static_cast<int64_t>((key & mask) + static_cast<uint64_t>(all.low[axis]));
                      key >>= bits[axis];
                    }
                  });
  }

 private:
  // For an extent that does not fit into 64 bits with the point's number. Rare, so it is not optimized.
  int64_t group_by_comparing(int64_t valid) const {
    int64_t n = 0;
    for (int64_t i = 0; i < size; ++i)
      if (inverse[i] >= 0) items[n++] = static_cast<uint64_t>(i);
    const auto voxel = [&](uint64_t point) {
      Voxel result;
      source.voxel(static_cast<int64_t>(point), result);
      return result;
    };
    std::stable_sort(items, items + valid, [&](uint64_t a, uint64_t b) { return voxel(a) < voxel(b); });
    return number(valid, 1, [&](int64_t n) { return static_cast<int64_t>(items[n]); },
                  [&](int64_t n) { return n == 0 || voxel(items[n]) != voxel(items[n - 1]); },
                  [&](int64_t n, int64_t* place) {
                    const Voxel result = voxel(items[n]);
                    std::copy(result.begin(), result.end(), place);
                  });
  }

  // Callbacks of the n-th sorted point: its number, whether it is the first of its voxel, and that voxel's coordinates.
  template <class Point, class Opens, class Place>
  int64_t number(int64_t valid, int64_t parts, Point&& point_of, Opens&& opens, Place&& place_of) const {
    std::vector<int64_t> before(parts + 1, 0);
    in_parts(valid, parts, threads, [&](int64_t part, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) before[part + 1] += opens(n);
    });
    for (int64_t part = 0; part < parts; ++part) before[part + 1] += before[part];
    in_parts(valid, parts, threads, [&](int64_t part, int64_t begin, int64_t end) {
      int64_t voxel = before[part] - 1;
      for (int64_t n = begin; n < end; ++n) {
        if (opens(n)) {
          ++voxel;
          place_of(n, coordinates + 3 * voxel);
          count[voxel] = n;  // its first point, for now
        }
        inverse[point_of(n)] = voxel;
      }
    });
    const int64_t voxels = before[parts];
    for (int64_t v = 0; v < voxels; ++v) count[v] = (v + 1 < voxels ? count[v + 1] : valid) - count[v];
    return voxels;
  }
};

// The results of `group` for all clouds.
struct Results {
  int64_t *inverse, *coordinates, *count;
  int64_t* sizes;  // offsets (packed) or lengths (padded), in voxels
  uint64_t* scratch;  // memory for two numbers per point
};

template <class Source> void group_clouds(const Results& to, const Clouds& clouds, const Source& source, int threads) {
  const bool many = clouds.batch >= threads;  // one thread per cloud; otherwise all threads share each cloud
  uint64_t* other = to.scratch + clouds.total();
  run_tasks(clouds.batch, many ? threads : 1, [&](int64_t b) {
    const int64_t begin = clouds.begin(b), size = clouds.size(b), end = begin + clouds.num_points;
    const Cloud<Source> cloud{source.from(begin), size, to.inverse + begin, to.coordinates + 3 * begin,
                              to.count + begin, to.scratch + begin, other + begin, many ? 1 : threads};
    const int64_t voxels = cloud.group();
    to.sizes[clouds.packed ? b + 1 : b] = voxels;
    if (clouds.packed) return;
    std::fill(to.inverse + begin + size, to.inverse + end, int64_t{-1});
    std::fill(to.coordinates + 3 * (begin + voxels), to.coordinates + 3 * end, int64_t{0});
    std::fill(to.count + begin + voxels, to.count + end, int64_t{0});
  });
  if (!clouds.packed) return;
  to.sizes[0] = 0;
  if (clouds.batch < 2) return;
  // Number the voxels through all clouds, and close the gaps between clouds.
  for (int64_t b = 0; b < clouds.batch; ++b) {
    const int64_t voxels = to.sizes[b + 1], before = to.sizes[b];
    std::copy_n(to.count + clouds.begin(b), voxels, to.count + before);
    std::copy_n(to.coordinates + 3 * clouds.begin(b), 3 * voxels, to.coordinates + 3 * before);
    to.sizes[b + 1] += before;
  }
  run_tasks(clouds.batch, threads, [&](int64_t b) {
    int64_t* own = to.inverse + clouds.begin(b);
    for (int64_t i = 0; i < clouds.size(b); ++i) own[i] = own[i] < 0 ? -1 : own[i] + to.sizes[b];
  });
}

void voxel_groups(Out<int64_t> inverse, Out<int64_t> coordinates, Out<int64_t> count, Out<int64_t> voxel_sizes,
                  Out<uint64_t> scratch, Input points, DType dtype, bool packed, int64_t batch, int64_t num_points,
                  In<int64_t> sizes, double x, double y, double z, Threads threads) {
  nb::gil_scoped_release release;
  with_wide_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const Points<T> source{points.as<T>(), {static_cast<T>(x), static_cast<T>(y), static_cast<T>(z)}};
    group_clouds({inverse, coordinates, count, voxel_sizes, scratch}, {packed, batch, num_points, sizes}, source, threads);
  });
}

void unique_voxels(Out<int64_t> inverse, Out<int64_t> unique, Out<int64_t> count, Out<int64_t> voxel_sizes,
                   Out<uint64_t> scratch, In<int64_t> coordinates, In<bool> valid, bool packed, int64_t batch,
                   int64_t num_points, In<int64_t> sizes, Threads threads) {
  nb::gil_scoped_release release;
  const Coordinates source{coordinates, valid};
  group_clouds({inverse, unique, count, voxel_sizes, scratch}, {packed, batch, num_points, sizes}, source, threads);
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("voxel_groups", &voxel_groups, nb::kw_only(), "inverse"_a, "coordinates"_a, "count"_a, "voxel_sizes"_a,
             "scratch"_a, "points"_a, "dtype"_a, "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(), "x"_a, "y"_a,
             "z"_a, kThreads);
  module.def("unique_voxels", &unique_voxels, nb::kw_only(), "inverse"_a, "unique"_a, "count"_a, "voxel_sizes"_a,
             "scratch"_a, "coordinates"_a, "valid"_a.none(), "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(),
             kThreads);
}
