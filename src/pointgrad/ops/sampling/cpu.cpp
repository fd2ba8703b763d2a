// One task per cloud. Farthest point sampling itself is in farthest.h.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "clouds.h"
#include "farthest.h"
#include "mixing.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

// The number of samples of each cloud, and their place in the output.
struct Samples {
  int64_t num_samples;
  const int64_t* counts;
  std::vector<int64_t> begin;

  Samples(bool packed, int64_t batch, int64_t num_samples, const int64_t* counts)
      : num_samples(num_samples), counts(counts), begin(batch + 1, 0) {
    for (int64_t b = 0; b < batch; ++b) begin[b + 1] = begin[b] + (packed && counts ? counts[b] : num_samples);
  }
  int64_t wanted(int64_t cloud) const { return counts ? counts[cloud] : num_samples; }
  int64_t capacity(int64_t cloud) const { return begin[cloud + 1] - begin[cloud]; }
};

template <class T>
void sample_cloud(const Clouds& clouds, int64_t cloud, const T* points, const int64_t* start, int64_t num_start,
                  int64_t wanted, int64_t capacity, int64_t* index, T* distance2) {
  const int64_t begin = clouds.begin(cloud), count = std::min(wanted, clouds.size(cloud));
  if (count > 0) {
    const int64_t first = 0;
    int64_t named = 1;
    if (start == nullptr) {
      start = &first;
    } else {
      // Rows of a start set may end in -1.
      named = std::min<int64_t>(std::find(start, start + num_start, -1) - start, count);
    }
    farthest_points(points + 3 * begin, clouds.size(cloud), start, named, count, index, distance2);
    if (clouds.packed)
      for (int64_t i = 0; i < count; ++i) index[i] += begin;
  }
  std::fill(index + count, index + capacity, int64_t{-1});
  if (distance2 != nullptr) std::fill(distance2 + count, distance2 + capacity, T(0));
}

void farthest_point_sampling(Out<int64_t> index, Output distance2, Input points, DType dtype, bool packed, int64_t batch,
                             int64_t num_points, In<int64_t> sizes, int64_t num_samples, In<int64_t> counts,
                             In<int64_t> start, int64_t num_start, Threads threads) {
  nb::gil_scoped_release release;
  const Clouds clouds{packed, batch, num_points, sizes};
  const Samples samples(packed, batch, num_samples, counts);
  with_wide_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    run_tasks(batch, threads, [&](int64_t b) {
      const int64_t* first = start != nullptr ? start + b * num_start : nullptr;
      sample_cloud<T>(clouds, b, points.as<T>(), first, num_start, samples.wanted(b), samples.capacity(b),
                      index + samples.begin[b], distance2 ? distance2.as<T>() + samples.begin[b] : nullptr);
    });
  });
}

// One well-mixed 63-bit number per place, as in reference.py.
uint64_t shuffle_key(uint64_t seed, int64_t place) {
  return mix(seed + static_cast<uint64_t>(place + 1) * kGolden) & 0x7fffffffffffffffu;
}

void random_sampling(Out<int64_t> index, bool packed, int64_t batch, int64_t num_points, In<int64_t> sizes,
                     int64_t num_samples, In<int64_t> counts, int64_t seed, Threads threads) {
  nb::gil_scoped_release release;
  const Clouds clouds{packed, batch, num_points, sizes};
  const Samples samples(packed, batch, num_samples, counts);
  run_tasks(batch, threads, [&](int64_t b) {
    const int64_t begin = clouds.begin(b), size = clouds.size(b), count = std::min(samples.wanted(b), size);
    std::vector<std::pair<uint64_t, int64_t>> keys(size);
    for (int64_t i = 0; i < size; ++i) keys[i] = {shuffle_key(seed, begin + i), packed ? begin + i : i};
    if (count < size) std::nth_element(keys.begin(), keys.begin() + count, keys.end());
    std::sort(keys.begin(), keys.begin() + count);
    int64_t* out = index + samples.begin[b];
    for (int64_t i = 0; i < samples.capacity(b); ++i) out[i] = i < count ? keys[i].second : -1;
  });
}

// Marks the points that are nearest to the center of their voxel, with an open-addressing hash table. Voxels are
// compared as floating-point numbers, so that no coordinate overflows an integer.
template <class T> void keep_nearest(bool* kept, const T* points, int64_t n, const T* edge) {
  struct Entry {
    T voxel[3], distance2;
    int64_t point;
  };
  size_t capacity = 16;
  while (capacity < 2 * static_cast<size_t>(n)) capacity *= 2;
  std::vector<Entry> table(capacity, Entry{{0, 0, 0}, 0, -1});
  for (int64_t i = 0; i < n; ++i) {
    Entry entry{{0, 0, 0}, 0, i};
    T delta[3];
    bool finite = true;
    uint64_t hash = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const T p = points[3 * i + axis];
      const T voxel = std::floor(p / edge[axis]);
      finite = finite && std::isfinite(voxel);
      entry.voxel[axis] = voxel + T(0);  // -0 and 0 are the same voxel
      delta[axis] = p - (voxel + T(0.5)) * edge[axis];
      const double wide = static_cast<double>(entry.voxel[axis]);
      hash = (hash ^ bit_cast<uint64_t>(wide)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    if (!finite) continue;
    entry.distance2 = delta[0] * delta[0] + delta[1] * delta[1] + delta[2] * delta[2];
    for (size_t slot = hash & (capacity - 1);; slot = (slot + 1) & (capacity - 1)) {
      Entry& present = table[slot];
      if (present.point >= 0 && !std::equal(entry.voxel, entry.voxel + 3, present.voxel)) continue;
      // Points come in index order, so ties keep the smaller index.
      if (present.point < 0 || entry.distance2 < present.distance2) present = entry;
      break;
    }
  }
  for (const Entry& entry : table)
    if (entry.point >= 0) kept[entry.point] = true;
}

void voxel_representatives(Out<bool> kept, Input points, DType dtype, bool packed, int64_t batch, int64_t num_points,
                           In<int64_t> sizes, double x, double y, double z, Threads threads) {
  nb::gil_scoped_release release;
  const Clouds clouds{packed, batch, num_points, sizes};
  with_wide_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const T edge[3] = {static_cast<T>(x), static_cast<T>(y), static_cast<T>(z)};
    run_tasks(batch, threads, [&](int64_t b) {
      const int64_t begin = clouds.begin(b);
      keep_nearest<T>(kept + begin, points.as<T>() + 3 * begin, clouds.size(b), edge);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("farthest_point_sampling", &farthest_point_sampling, nb::kw_only(), "index"_a, "distance2"_a.none(),
             "points"_a, "dtype"_a, "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(), "num_samples"_a,
             "counts"_a.none(), "start"_a.none(), "num_start"_a, kThreads);
  module.def("random_sampling", &random_sampling, nb::kw_only(), "index"_a, "packed"_a, "batch"_a, "num_points"_a,
             "sizes"_a.none(), "num_samples"_a, "counts"_a.none(), "seed"_a, kThreads);
  module.def("voxel_representatives", &voxel_representatives, nb::kw_only(), "kept"_a, "points"_a, "dtype"_a,
             "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(), "x"_a, "y"_a, "z"_a, kThreads);
}
