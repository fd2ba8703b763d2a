// Kernel maps: which input each output reads at each kernel position, and schedules of these tables.
//
// Voxels are found in blocks of 4 x 4 x 4. A hash table holds the blocks; a block has one bit for each of its voxels, and
// the rows of its voxels are stored one after another, in the order of the bits. The window of an output covers few
// blocks, and a block that does not exist is skipped with all kernel positions in it.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "clouds.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kRowsPerTask = 1 << 10;
constexpr int64_t kTile = 128;   // rows of a tile of the schedule
constexpr int64_t kKeyBits = 62;  // kernel positions beyond share the bits of the first ones

using Three = std::array<int64_t, 3>;

POINTGRAD_INLINE bool is_int32(int64_t value) { return value == static_cast<int32_t>(value); }

struct Block {
  uint64_t xy, z_cloud;  // its place: coordinates divided by 4, and the cloud
  uint64_t voxels;       // one bit for each voxel, z fastest
  int64_t first;         // where its rows begin
};

// The blocks of a set of voxels, in the order in which they first occur.
class Blocks {
 public:
  Blocks() : slots_(1 << 10, -1), shift_(64 - 10) {}

  POINTGRAD_INLINE int32_t find(int32_t cloud, int32_t x, int32_t y, int32_t z) const {
    return slots_[slot_of(join(x, y), join(z, cloud))];
  }

  int32_t add(int32_t cloud, int32_t x, int32_t y, int32_t z) {
    const uint64_t xy = join(x, y), z_cloud = join(z, cloud);
    const uint64_t slot = slot_of(xy, z_cloud);
    if (slots_[slot] >= 0) return slots_[slot];
    const int32_t number = static_cast<int32_t>(blocks_.size());
    slots_[slot] = number;
    blocks_.push_back({xy, z_cloud, 0, 0});
    if (2 * blocks_.size() > slots_.size()) grow();
    return number;
  }

  POINTGRAD_INLINE const Block& operator[](int32_t number) const { return blocks_[number]; }
  std::vector<Block>& all() { return blocks_; }

 private:
  static POINTGRAD_INLINE uint64_t join(int32_t high, int32_t low) {
    return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
  }

  // The slot of a block, or the empty slot where it belongs.
  POINTGRAD_INLINE uint64_t slot_of(uint64_t xy, uint64_t z_cloud) const {
    const uint64_t mask = slots_.size() - 1;
    uint64_t hash = xy * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 32 ^ z_cloud) * 0xd6e8feb86659fd93u;
    hash ^= hash >> 29;
    for (uint64_t slot = (hash * 0x9e3779b97f4a7c15u) >> shift_;; slot = (slot + 1) & mask) {
      const int32_t number = slots_[slot];
      if (number < 0 || (blocks_[number].xy == xy && blocks_[number].z_cloud == z_cloud)) return slot;
    }
  }

  void grow() {
    slots_.assign(2 * slots_.size(), -1);
    --shift_;
    for (size_t number = 0; number < blocks_.size(); ++number)
      slots_[slot_of(blocks_[number].xy, blocks_[number].z_cloud)] = static_cast<int32_t>(number);
  }

  std::vector<Block> blocks_;
  std::vector<int32_t> slots_;
  int shift_;
};

POINTGRAD_INLINE int low_bits(int64_t value, int axis) { return static_cast<int>(value & 3) << (4 - 2 * axis); }

POINTGRAD_CLONES int64_t rank_of(const Block& block, int bit) {
  return block.first + __builtin_popcountll(block.voxels & ((uint64_t{1} << bit) - 1));
}

// The rows of a batch of clouds by their voxel. Of equal voxels the first counts.
struct Voxels {
  Blocks blocks;
  std::vector<int32_t> rows;   // of all blocks
  std::vector<int32_t> cloud;  // of each row, or -1 if it does not count

  Voxels(const int64_t* coordinates, const Clouds& clouds) : cloud(clouds.total(), -1) {
    const int64_t total = clouds.total();
    std::vector<int32_t> block(total, -1);
    for (int64_t b = 0; b < clouds.batch; ++b) {
      const int64_t begin = clouds.begin(b), end = begin + clouds.size(b);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t* at = coordinates + row * 3;
        if (!is_int32(at[0]) || !is_int32(at[1]) || !is_int32(at[2])) continue;
        const int32_t x = static_cast<int32_t>(at[0] >> 2), y = static_cast<int32_t>(at[1] >> 2);
        block[row] = blocks.add(static_cast<int32_t>(b), x, y, static_cast<int32_t>(at[2] >> 2));
        blocks.all()[block[row]].voxels |= uint64_t{1} << bit_of(at);
        cloud[row] = static_cast<int32_t>(b);
      }
    }
    int64_t count = 0;
    for (Block& each : blocks.all()) {
      each.first = count;
      count += __builtin_popcountll(each.voxels);
    }
    rows.assign(count, -1);
    place(coordinates, block.data(), total);
  }

 private:
  static POINTGRAD_INLINE int bit_of(const int64_t* at) {
    return low_bits(at[0], 0) + low_bits(at[1], 1) + low_bits(at[2], 2);
  }

  void place(const int64_t* coordinates, const int32_t* block, int64_t total) {
    for (int64_t row = 0; row < total; ++row) {
      if (block[row] < 0) continue;
      int32_t& first = rows[rank_of(blocks[block[row]], bit_of(coordinates + row * 3))];
      if (first < 0) {
        first = static_cast<int32_t>(row);
      } else {
        cloud[row] = -1;
      }
    }
  }
};

struct Kernel {
  Three size, stride, padding, dilation;
  int64_t volume() const { return size[0] * size[1] * size[2]; }
};

// Along one axis, the blocks that a window covers. Positions beyond 32 bits are left out.
struct Window {
  struct Run {
    int32_t block;
    int64_t begin, end;  // kernel positions
  };
  std::vector<Run> runs;
  std::vector<int> bits;  // of each kernel position in its block

  void move(int64_t first, int64_t size, int64_t step, int axis) {
    runs.clear();
    bits.resize(size);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = first + i * step;
      bits[i] = low_bits(at, axis);
      if (!is_int32(at)) continue;
      const int32_t block = static_cast<int32_t>(at >> 2);
      if (!runs.empty() && runs.back().block == block && runs.back().end == i) {
        runs.back().end = i + 1;
      } else {
        runs.push_back({block, i, i + 1});
      }
    }
  }
};

// Rows [begin, end) of the sources, and the bits of the positions that each uses.
POINTGRAD_CLONES void find_sources(int32_t* sources, uint64_t* keys, const Voxels& inputs, const int64_t* coordinates,
                                   const int32_t* cloud, const Kernel& kernel, int64_t begin, int64_t end) {
  const int64_t volume = kernel.volume();
  Window windows[3];
  std::fill(sources + begin * volume, sources + end * volume, -1);
  for (int64_t row = begin; row < end; ++row) {
    keys[row] = 0;
    if (cloud[row] < 0) continue;
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t first = coordinates[row * 3 + axis] * kernel.stride[axis] - kernel.padding[axis];
      windows[axis].move(first, kernel.size[axis], kernel.dilation[axis], axis);
    }
    int32_t* to = sources + row * volume;
    uint64_t key = 0;
    for (const Window::Run& x : windows[0].runs)
      for (const Window::Run& y : windows[1].runs)
        for (const Window::Run& z : windows[2].runs) {
          const int32_t number = inputs.blocks.find(cloud[row], x.block, y.block, z.block);
          if (number < 0) continue;
          const uint64_t voxels = inputs.blocks[number].voxels;
          const int32_t* rows = inputs.rows.data() + inputs.blocks[number].first;
          for (int64_t i = x.begin; i < x.end; ++i)
            for (int64_t j = y.begin; j < y.end; ++j) {
              const int line = windows[0].bits[i] + windows[1].bits[j];
              if ((voxels >> line & 15) == 0) continue;
              const int64_t base = (i * kernel.size[1] + j) * kernel.size[2];
              for (int64_t k = z.begin; k < z.end; ++k) {
                const uint64_t bit = uint64_t{1} << (line + windows[2].bits[k]);
                if ((voxels & bit) == 0) continue;
                to[base + k] = rows[__builtin_popcountll(voxels & (bit - 1))];
                key |= uint64_t{1} << (base + k) % kKeyBits;
              }
            }
        }
    keys[row] = key;
  }
}

POINTGRAD_CLONES void find_keys(uint64_t* keys, const int32_t* table, int64_t volume, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    uint64_t key = 0;
    for (int64_t first = 0; first < volume; first += kKeyBits)
      for (int64_t k = first; k < std::min(volume, first + kKeyBits); ++k)
        key |= static_cast<uint64_t>(table[row * volume + k] >= 0) << (k - first);
    keys[row] = key;
  }
}

struct Item {
  uint64_t key;
  int32_t row;
};

// The rows by key, equal ones in their order: a radix sort.
std::vector<Item> sorted(const uint64_t* keys, int64_t rows, int64_t bits) {
  constexpr int kDigit = 9;
  constexpr int64_t kDigits = 1 << kDigit;
  std::vector<Item> items(rows), other(rows);
  for (int64_t row = 0; row < rows; ++row) items[row] = {keys[row], static_cast<int32_t>(row)};
  for (int64_t shift = 0; shift < bits; shift += kDigit) {
    int64_t next[kDigits] = {};
    for (const Item& item : items) ++next[item.key >> shift & (kDigits - 1)];
    int64_t sum = 0;
    for (int64_t& place : next) sum += std::exchange(place, sum);
    for (const Item& item : items) other[next[item.key >> shift & (kDigits - 1)]++] = item;
    items.swap(other);
  }
  return items;
}

// Writes a schedule (see reference.py): the order of the rows, the positions of each tile, the tiles of each position.
void write_schedule(int32_t* out, const int32_t* table, const uint64_t* keys, int64_t rows, int64_t volume) {
  const std::vector<Item> items = sorted(keys, rows, std::min(volume, kKeyBits));
  for (int64_t i = 0; i < rows; ++i) out[i] = items[i].row;
  const int64_t tiles = (rows + kTile - 1) / kTile;
  int32_t* of_tile = out + rows;
  int32_t* of_position = of_tile + tiles * (volume + 1);
  std::fill(of_tile, of_position + volume * (tiles + 1), -1);
  for (int64_t k = 0; k < volume; ++k) of_position[k * (tiles + 1)] = 0;
  std::vector<uint8_t> used(volume);
  for (int64_t tile = 0; tile < tiles; ++tile, of_tile += volume + 1) {
    const int64_t begin = tile * kTile, end = std::min(rows, begin + kTile);
    if (volume <= kKeyBits) {
      uint64_t keys_used = 0;
      for (int64_t i = begin; i < end; ++i) keys_used |= items[i].key;
      for (int64_t k = 0; k < volume; ++k) used[k] = keys_used >> k & 1;
    } else {
      std::fill(used.begin(), used.end(), 0);
      for (int64_t i = begin; i < end; ++i)
        for (int64_t k = 0; k < volume; ++k) used[k] |= table[items[i].row * volume + k] >= 0;
    }
    of_tile[0] = 0;
    for (int64_t k = 0; k < volume; ++k) {
      if (!used[k]) continue;
      of_tile[++of_tile[0]] = static_cast<int32_t>(k);
      int32_t* list = of_position + k * (tiles + 1);
      list[++list[0]] = static_cast<int32_t>(tile);
    }
  }
}

void kernel_table(Out<int32_t> sources, Out<int32_t> source_schedule, Out<int32_t> targets,
                  Out<int32_t> target_schedule, In<int64_t> coordinates, bool packed, int64_t batch, int64_t num_points,
                  In<int64_t> sizes, In<int64_t> outputs, int64_t num_outputs, In<int64_t> output_sizes, Three kernel,
                  Three stride, Three padding, Three dilation, bool same, bool mirrored, Threads threads) {
  nb::gil_scoped_release release;
  const Kernel shape{kernel, stride, padding, dilation};
  const Clouds clouds{packed, batch, num_points, sizes}, output_clouds{packed, batch, num_outputs, output_sizes};
  const Voxels inputs(coordinates, clouds);
  std::vector<int32_t> distinct;  // of the outputs
  if (!same) distinct = std::move(Voxels(outputs, output_clouds).cloud);
  const int32_t* cloud = same ? inputs.cloud.data() : distinct.data();
  const int64_t* wanted = same ? coordinates : outputs;
  const int64_t rows = same ? clouds.total() : output_clouds.total(), volume = shape.volume();
  std::vector<uint64_t> keys(rows);
  parallel_for(rows, kRowsPerTask, threads, [&](int64_t begin, int64_t end) {
    find_sources(sources, keys.data(), inputs, wanted, cloud, shape, begin, end);
  });
  if (mirrored) return write_schedule(source_schedule, sources, keys.data(), rows, volume);
  const int64_t count = clouds.total();
  std::fill(targets.data, targets.data + count * volume, -1);
  parallel_for(rows, kRowsPerTask, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t k = 0; k < volume; ++k) {
        const int64_t source = sources[row * volume + k];
        if (source >= 0) targets[source * volume + k] = static_cast<int32_t>(row);
      }
  });
  std::vector<uint64_t> target_keys(count);
  parallel_for(count, kRowsPerTask, threads, [&](int64_t begin, int64_t end) {
    find_keys(target_keys.data(), targets, volume, begin, end);
  });
  run_tasks(2, threads, [&](int64_t i) {
    if (i == 0) write_schedule(source_schedule, sources, keys.data(), rows, volume);
    if (i == 1) write_schedule(target_schedule, targets, target_keys.data(), count, volume);
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("kernel_table", &kernel_table, nb::kw_only(), "sources"_a, "source_schedule"_a, "targets"_a,
             "target_schedule"_a, "coordinates"_a, "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(),
             "outputs"_a.none(), "num_outputs"_a, "output_sizes"_a.none(), "kernel"_a, "stride"_a, "padding"_a,
             "dilation"_a, "same"_a, "mirrored"_a, kThreads);
}
