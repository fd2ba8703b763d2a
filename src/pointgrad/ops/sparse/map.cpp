// Kernel maps: which input each output reads at each kernel position, and schedules of these tables.
//
// Voxels are found in blocks of 4 x 4 x 4. A hash table holds the blocks; a block has one bit for each of its voxels, and
// the rows of its voxels are stored one after another, in the order of the bits. The window of an output covers few
// blocks, and a block that does not exist is skipped with all kernel positions in it.
#include <nanobind/stl/array.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "clouds.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kRowsPerTask = 1 << 10;
constexpr int64_t kTile = 64;  // rows of a tile of the schedule
constexpr int64_t kWord = 32;  // bits of a word of the schedule
constexpr int64_t kKeyBits = 62;

using Three = std::array<int64_t, 3>;

POINTGRAD_INLINE bool is_int32(int64_t value) { return value == static_cast<int32_t>(value); }

struct Block {
  uint64_t xy, z_cloud;  // its place: coordinates divided by 4, and the cloud
  uint64_t voxels;       // one bit for each voxel, z fastest
  int64_t first;         // where its rows begin
};

// The blocks of a set of voxels, in the order in which they first occur. Number 0 is an empty block, which is found in
// place of blocks that do not exist; searches then have no branch that is hard to predict.
class Blocks {
 public:
  static constexpr int32_t kNowhere = std::numeric_limits<int32_t>::min();  // no voxel is in a block with this place

  Blocks() : blocks_(1, {~uint64_t{0}, ~uint64_t{0}, 0, 0}), slots_(1 << 10, 0), shift_(64 - 10) {}

  POINTGRAD_INLINE const Block& find(int32_t cloud, int32_t x, int32_t y, int32_t z) const {
    return blocks_[slots_[slot_of(join(x, y), join(z, cloud))]];
  }

  int32_t add(int32_t cloud, int32_t x, int32_t y, int32_t z) {
    const uint64_t xy = join(x, y), z_cloud = join(z, cloud);
    const uint64_t slot = slot_of(xy, z_cloud);
    if (slots_[slot] != 0) return slots_[slot];
    const int32_t number = static_cast<int32_t>(blocks_.size());
    slots_[slot] = number;
    blocks_.push_back({xy, z_cloud, 0, 0});
    if (2 * blocks_.size() > slots_.size()) grow();
    return number;
  }

  std::vector<Block>& all() { return blocks_; }

 private:
  static POINTGRAD_INLINE uint64_t join(int32_t high, int32_t low) {
    return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
  }

  // The slot of a block, or the empty slot where it belongs.
  POINTGRAD_INLINE uint64_t slot_of(uint64_t xy, uint64_t z_cloud) const {
    const uint64_t mask = slots_.size() - 1;
    uint64_t hash = (xy ^ z_cloud * 0xd6e8feb86659fd93u) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
    for (uint64_t slot = hash >> shift_;; slot = (slot + 1) & mask) {
      const int32_t number = slots_[slot];
      const uint64_t differs = (blocks_[number].xy ^ xy) | (blocks_[number].z_cloud ^ z_cloud);
      if ((differs & (0 - static_cast<uint64_t>(number != 0))) == 0) return slot;
    }
  }

  void grow() {
    slots_.assign(2 * slots_.size(), 0);
    --shift_;
    for (size_t number = 1; number < blocks_.size(); ++number)
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
  std::vector<int32_t> rows;   // rows of the voxels of all blocks
  std::vector<int32_t> cloud;  // cloud of each row, or -1 if it does not count

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
    rows.assign(count + 1, -1);  // one more, because searches read a row even if its voxel does not exist
    place(coordinates, block.data(), total);
  }

 private:
  static POINTGRAD_INLINE int bit_of(const int64_t* at) {
    return low_bits(at[0], 0) + low_bits(at[1], 1) + low_bits(at[2], 2);
  }

  void place(const int64_t* coordinates, const int32_t* block, int64_t total) {
    for (int64_t row = 0; row < total; ++row) {
      if (block[row] < 0) continue;
      int32_t& first = rows[rank_of(blocks.all()[block[row]], bit_of(coordinates + row * 3))];
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
  std::vector<int> key_bits;  // bit of each position in keys: see reference.py
  int64_t volume() const { return size[0] * size[1] * size[2]; }
};

std::vector<int> key_bits_of(const Three& size) {
  std::vector<int64_t> distance;
  for (int64_t i = 0; i < size[0]; ++i)
    for (int64_t j = 0; j < size[1]; ++j)
      for (int64_t k = 0; k < size[2]; ++k) {
        const int64_t x = 2 * i - size[0] + 1, y = 2 * j - size[1] + 1, z = 2 * k - size[2] + 1;
        distance.push_back(x * x + y * y + z * z);
      }
  const int64_t volume = static_cast<int64_t>(distance.size());
  std::vector<int> bits(volume);
  for (int64_t k = 0; k < volume; ++k) bits[k] = static_cast<int>(k % kKeyBits);
  if (volume > kKeyBits) return bits;
  std::vector<int> position = bits;
  std::stable_sort(position.begin(), position.end(), [&](int a, int b) { return distance[a] < distance[b]; });
  for (int64_t bit = 0; bit < volume; ++bit) bits[position[bit]] = static_cast<int>(bit);
  return bits;
}

// Along one axis, the blocks that a window covers.
class Window {
 public:
  Window(int64_t size, int64_t step, int axis) : blocks(size), number(size), bits(size), step_(step), axis_(axis) {}

  POINTGRAD_INLINE void move(int64_t first) {
    if (first == first_ && count > 0) return;
    first_ = first;
    int32_t last = place(first);
    int64_t found = 0;
    blocks[0] = last;
    for (int64_t i = 0, at = first; i < static_cast<int64_t>(bits.size()); ++i, at += step_) {
      const int32_t block = place(at);
      found += block != last;
      blocks[found] = last = block;
      number[i] = found;
      bits[i] = low_bits(at, axis_);
    }
    count = found + 1;
  }

  int64_t count = 0;
  std::vector<int32_t> blocks;
  std::vector<int64_t> number;  // number of the block of each kernel position
  std::vector<int> bits;        // bit of each kernel position in its block

 private:
  static POINTGRAD_INLINE int32_t place(int64_t at) {
    return is_int32(at) ? static_cast<int32_t>(at >> 2) : Blocks::kNowhere;
  }

  int64_t step_, first_ = 0;
  int axis_;
};

// Rows [begin, end) of the sources, and the bits of the positions that each uses.
POINTGRAD_CLONES void find_sources(int32_t* sources, uint64_t* keys, const Voxels& inputs, const int64_t* coordinates,
                                   const int32_t* cloud, const Kernel& kernel, int64_t begin, int64_t end) {
  struct Found {
    uint64_t voxels;
    const int32_t* rows;
  };
  const int64_t volume = kernel.volume();
  Window x(kernel.size[0], kernel.dilation[0], 0), y(kernel.size[1], kernel.dilation[1], 1),
      z(kernel.size[2], kernel.dilation[2], 2);
  std::vector<Found> blocks(volume);
  for (int64_t row = begin; row < end; ++row) {
    int32_t* to = sources + row * volume;
    keys[row] = 0;
    if (cloud[row] < 0) {
      std::fill(to, to + volume, -1);
      continue;
    }
    const int64_t* at = coordinates + row * 3;
    x.move(at[0] * kernel.stride[0] - kernel.padding[0]);
    y.move(at[1] * kernel.stride[1] - kernel.padding[1]);
    z.move(at[2] * kernel.stride[2] - kernel.padding[2]);
    Found* found = blocks.data();
    for (int64_t i = 0; i < x.count; ++i)
      for (int64_t j = 0; j < y.count; ++j)
        for (int64_t k = 0; k < z.count; ++k) {
          const Block& block = inputs.blocks.find(cloud[row], x.blocks[i], y.blocks[j], z.blocks[k]);
          *found++ = {block.voxels, inputs.rows.data() + block.first};
        }
    uint64_t key = 0;
    const int* key_bit = kernel.key_bits.data();
    for (int64_t i = 0; i < kernel.size[0]; ++i)
      for (int64_t j = 0; j < kernel.size[1]; ++j) {
        const Found* line = blocks.data() + (x.number[i] * y.count + y.number[j]) * z.count;
        const int line_bits = x.bits[i] + y.bits[j];
        for (int64_t k = 0; k < kernel.size[2]; ++k) {
          const Found& block = line[z.number[k]];
          const int bit = line_bits + z.bits[k];
          const uint64_t exists = block.voxels >> bit & 1;
          const uint64_t before = block.voxels & ((uint64_t{1} << bit) - 1);
          // Arithmetic instead of a branch, which would be hard to predict: -1 if the voxel does not exist.
          *to++ = block.rows[__builtin_popcountll(before)] | (static_cast<int32_t>(exists) - 1);
          key |= exists << *key_bit++;
        }
      }
    keys[row] = key;
  }
}

POINTGRAD_CLONES void find_keys(uint64_t* keys, const int32_t* table, const Kernel& kernel, int64_t begin,
                                int64_t end) {
  const int64_t volume = kernel.volume();
  for (int64_t row = begin; row < end; ++row) {
    uint64_t key = 0;
    for (int64_t k = 0; k < volume; ++k)
      key |= static_cast<uint64_t>(table[row * volume + k] >= 0) << kernel.key_bits[k];
    keys[row] = key;
  }
}

// Writes the rows in the order of their keys, equal ones in their own order: a radix sort.
void sort_rows(int32_t* order, const uint64_t* keys, int64_t rows, int64_t bits) {
  constexpr int kDigit = 9;
  constexpr int64_t kDigits = 1 << kDigit;
  const int64_t passes = (bits + kDigit - 1) / kDigit;
  std::vector<int32_t> other(rows);
  int32_t* from = passes % 2 == 0 ? order : other.data();
  int32_t* to = passes % 2 == 0 ? other.data() : order;
  for (int64_t row = 0; row < rows; ++row) from[row] = static_cast<int32_t>(row);
  for (int64_t pass = 0; pass < passes; ++pass, std::swap(from, to)) {
    const auto digit = [&](int64_t row) { return keys[row] >> pass * kDigit & (kDigits - 1); };
    int64_t next[kDigits] = {};
    for (int64_t row = 0; row < rows; ++row) ++next[digit(row)];
    int64_t sum = 0;
    for (int64_t& place : next) sum += std::exchange(place, sum);
    for (int64_t i = 0; i < rows; ++i) to[next[digit(from[i])]++] = from[i];
  }
}

// Writes a schedule (see reference.py): the order of the rows, and the positions that each tile uses. Changes the keys.
void write_schedule(int32_t* out, const int32_t* table, std::vector<uint64_t>& keys, const Kernel& kernel) {
  const int64_t rows = static_cast<int64_t>(keys.size()), volume = kernel.volume();
  for (uint64_t& key : keys)
    for (int shift = 1; shift < 64; shift *= 2) key ^= key >> shift;  // the place of a Gray code among all codes
  sort_rows(out, keys.data(), rows, std::min(volume, kKeyBits));
  const int64_t tiles = (rows + kTile - 1) / kTile, words = (volume + kWord - 1) / kWord;
  int32_t* masks = out + rows;
  for (int64_t tile = 0; tile < tiles; ++tile, masks += words) {
    const int64_t begin = tile * kTile, end = std::min(rows, begin + kTile);
    std::fill(masks, masks + words, 0);
    const auto use = [&](int64_t k) { masks[k / kWord] |= static_cast<int32_t>(uint32_t{1} << k % kWord); };
    if (volume <= kKeyBits) {
      uint64_t used = 0;
      for (int64_t i = begin; i < end; ++i) used |= keys[out[i]] ^ keys[out[i]] >> 1;
      for (int64_t k = 0; k < volume; ++k)
        if (used >> kernel.key_bits[k] & 1) use(k);
    } else {
      std::vector<int32_t> all(volume, -1);  // negative if all rows are missing; this loop has no branch
      for (int64_t i = begin; i < end; ++i)
        for (int64_t k = 0; k < volume; ++k) all[k] &= table[out[i] * volume + k];
      for (int64_t k = 0; k < volume; ++k)
        if (all[k] >= 0) use(k);
    }
  }
}

void kernel_table(Out<int32_t> sources, Out<int32_t> source_schedule, Out<int32_t> targets,
                  Out<int32_t> target_schedule, In<int64_t> coordinates, bool packed, int64_t batch, int64_t num_points,
                  In<int64_t> sizes, In<int64_t> outputs, int64_t num_outputs, In<int64_t> output_sizes, Three kernel,
                  Three stride, Three padding, Three dilation, bool same, bool mirrored, Threads threads) {
  nb::gil_scoped_release release;
  const Kernel shape{kernel, stride, padding, dilation, key_bits_of(kernel)};
  const Clouds clouds{packed, batch, num_points, sizes}, output_clouds{packed, batch, num_outputs, output_sizes};
  const Voxels inputs(coordinates, clouds); 
  std::vector<int32_t> distinct;  // cloud of each output, or -1 if it does not count
  if (!same) distinct = std::move(Voxels(outputs, output_clouds).cloud);
  const int32_t* cloud = same ? inputs.cloud.data() : distinct.data();
  const int64_t* wanted = same ? coordinates : outputs;
  const int64_t rows = same ? clouds.total() : output_clouds.total(), volume = shape.volume();
  std::vector<uint64_t> keys(rows);
  parallel_for(rows, kRowsPerTask, threads, [&](int64_t begin, int64_t end) {
    find_sources(sources, keys.data(), inputs, wanted, cloud, shape, begin, end);
  });
  if (mirrored) return write_schedule(source_schedule, sources, keys, shape);
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
    find_keys(target_keys.data(), targets, shape, begin, end);
  });
  run_tasks(2, threads, [&](int64_t i) {
    if (i == 0) write_schedule(source_schedule, sources, keys, shape);
    if (i == 1) write_schedule(target_schedule, targets, target_keys, shape);
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
