// Codes of voxels along space-filling curves, and the order of the codes.
#include <algorithm>
#include <vector>

#include "clouds.h"
#include "module.h"
#include "numbers.h"
#include "radix.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kTile = 512;  // points whose coordinates stay in the first-level cache
constexpr int64_t kPointsPerTask = 1 << 15;

// Coordinates of a tile, one array per axis, so that all loops over points are vectorized.
struct Tile {
  uint32_t axis[3][kTile];
};

// Bit i of the value becomes bit 3 i; 21 bits.
POINTGRAD_INLINE uint64_t spread(uint64_t value) {
  value = (value | value << 32) & 0x001f00000000ffffull;
  value = (value | value << 16) & 0x001f0000ff0000ffull;
  value = (value | value << 8) & 0x100f00f00f00f00full;
  value = (value | value << 4) & 0x10c30c30c30c30c3ull;
  return (value | value << 2) & 0x1249249249249249ull;
}

POINTGRAD_CLONES void load(Tile& tile, const int64_t* coordinates, int64_t count, bool swapped, int bits) {
  const int64_t most = (int64_t{1} << bits) - 1;
  for (int axis = 0; axis < 3; ++axis) {
    uint32_t* to = tile.axis[swapped && axis < 2 ? 1 - axis : axis];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t value = coordinates[3 * i + axis];
      to[i] = static_cast<uint32_t>(value < 0 ? 0 : (value > most ? most : value));
    }
  }
}

// Skilling's transform: from the highest bit down, undo the rotation of the octant that the bit selects.
POINTGRAD_CLONES void to_hilbert_axes(Tile& tile, int64_t count, int bits) {
  uint32_t *xs = tile.axis[0], *ys = tile.axis[1], *zs = tile.axis[2];
  for (int bit = bits - 1; bit > 0; --bit) {
    const uint32_t lower = (uint32_t{1} << bit) - 1;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t x = xs[i], y = ys[i], z = zs[i];
      x ^= lower & -(x >> bit & 1);
      // All bits of `upper` are set where the value is in the upper half: x is mirrored; else it is exchanged.
      uint32_t upper = -(y >> bit & 1), exchanged = (x ^ y) & lower & ~upper;
      x ^= exchanged | (lower & upper);
      y ^= exchanged;
      upper = -(z >> bit & 1), exchanged = (x ^ z) & lower & ~upper;
      x ^= exchanged | (lower & upper);
      z ^= exchanged;
      xs[i] = x, ys[i] = y, zs[i] = z;
    }
  }
}

POINTGRAD_CLONES void interleave(int64_t* codes, const Tile& tile, int64_t count, bool gray, uint64_t cloud) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t code = spread(tile.axis[0][i]) << 2 | spread(tile.axis[1][i]) << 1 | spread(tile.axis[2][i]);
    if (gray)
      for (int shift = 1; shift < 64; shift *= 2) code ^= code >> shift;
    codes[i] = static_cast<int64_t>(code | cloud);
  }
}

// The codes of points of one cloud.
void encode(int64_t* codes, const int64_t* coordinates, int64_t count, int64_t order, int bits, int64_t cloud) {
  Tile tile;
  for (int64_t i = 0; i < count; i += kTile) {
    const int64_t size = std::min(kTile, count - i);
    load(tile, coordinates + 3 * i, size, order & 1, bits);
    if (order >= 2) to_hilbert_axes(tile, size, bits);
    interleave(codes + i, tile, size, order >= 2, static_cast<uint64_t>(cloud) << 3 * bits);
  }
}

void space_filling_curve(Out<int64_t> codes, In<int64_t> coordinates, In<int64_t> orders, int64_t curves, int bits,
                         bool packed, int64_t batch, int64_t num_points, In<int64_t> sizes, Threads threads) {
  nb::gil_scoped_release release;
  const Clouds clouds{packed, batch, num_points, sizes};
  const int64_t total = clouds.total();
  parallel_for(total, kPointsPerTask / 4, threads, [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    if (!packed) {
      first = begin / num_points;
    } else if (sizes != nullptr) {
      first = std::upper_bound(sizes + 0, sizes + batch, begin) - sizes - 1;
    }
    for (int64_t cloud = first; cloud < batch && clouds.begin(cloud) < end; ++cloud) {
      const int64_t start = clouds.begin(cloud), stop = start + clouds.size(cloud);
      const int64_t from = std::max(start, begin), to = std::min(stop, end);
      for (int64_t k = 0; k < curves; ++k) {
        int64_t* mine = codes + k * total;
        if (from < to) encode(mine + from, coordinates + 3 * from, to - from, orders[k], bits, cloud);
        if (!packed) std::fill(mine + std::max(from, to), mine + std::min(start + num_points, end), int64_t{-1});
      }
    }
  });
}

// Sorts the codes of one cloud. The two results are also the memory of the sort.
void sort_cloud(int64_t* order, int64_t* inverse, const int64_t* codes, int64_t size, int64_t begin, int threads) {
  if (size == 0) return;
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, size / kPointsPerTask));
  std::vector<uint64_t> differing(parts, 0);
  in_parts(size, parts, threads, [&](int64_t part, int64_t from, int64_t to) {
    uint64_t found = 0;
    for (int64_t i = from; i < to; ++i) found |= static_cast<uint64_t>(codes[i] ^ codes[0]);
    differing[part] = found;
  });
  uint64_t any = 0;
  for (const uint64_t found : differing) any |= found;
  const int bits = bit_width(any), row_bits = bit_width(size - 1), step = 64 - row_bits;
  const uint64_t row_mask = (uint64_t{1} << row_bits) - 1;
  auto *items = reinterpret_cast<uint64_t*>(order), *other = reinterpret_cast<uint64_t*>(inverse);
  // An item is a row below as many bits of its code as fit: all that differ, except in huge clouds.
  for (int low = 0; low == 0 || low < bits; low += step) {
    const int width = std::min(step, bits - low);
    const uint64_t mask = (uint64_t{1} << width) - 1;
    in_parts(size, parts, threads, [&](int64_t, int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const uint64_t row = low == 0 ? static_cast<uint64_t>(i) : items[i] & row_mask;
        items[i] = (static_cast<uint64_t>(codes[row]) >> low & mask) << row_bits | row;
      }
    });
    if (radix_sort(items, other, size, row_bits, row_bits + width, parts, threads) != items) std::swap(items, other);
  }
  in_parts(size, parts, threads, [&](int64_t, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) order[i] = static_cast<int64_t>(items[i] & row_mask) + begin;
  });
  in_parts(size, parts, threads, [&](int64_t, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) inverse[order[i] - begin] = i + begin;
  });
}

void serialize(Out<int64_t> order, Out<int64_t> inverse, In<int64_t> codes, int64_t curves, bool packed, int64_t batch,
               int64_t num_points, In<int64_t> sizes, Threads threads) {
  nb::gil_scoped_release release;
  const Clouds clouds{packed, batch, num_points, sizes};
  const int64_t tasks = curves * batch;
  const bool many = tasks >= threads;  // one thread per curve and cloud; otherwise all threads share each of them
  run_tasks(tasks, many ? threads : 1, [&](int64_t task) {
    const int64_t cloud = task % batch, size = clouds.size(cloud), begin = clouds.begin(cloud);
    const int64_t at = task / batch * clouds.total() + begin;
    sort_cloud(order + at, inverse + at, codes + at, size, packed ? begin : 0, many ? 1 : threads);
    if (packed) return;
    std::fill(order + at + size, order + at + num_points, int64_t{-1});
    std::fill(inverse + at + size, inverse + at + num_points, int64_t{-1});
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("space_filling_curve", &space_filling_curve, nb::kw_only(), "codes"_a, "coordinates"_a, "orders"_a,
             "curves"_a, "bits"_a, "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(), kThreads);
  module.def("serialize", &serialize, nb::kw_only(), "order"_a, "inverse"_a, "codes"_a, "curves"_a, "packed"_a,
             "batch"_a, "num_points"_a, "sizes"_a.none(), kThreads);
}
