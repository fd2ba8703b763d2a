// Shared by sparse convolution and its gradient by the weight: kernel maps, and the division of channels.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "numbers.h"
#include "products.h"

namespace pointgrad {
namespace sparse {

struct Map {
  const int32_t* sources;  // (rows, volume)
  int64_t rows, volume;
  int64_t num_features;  // rows of the features
  bool flip;             // the matrix of position k is number volume - 1 - k

  int64_t matrix(int64_t position) const { return flip ? volume - 1 - position : position; }
};

namespace {

// Appends each source of rows [begin, end) of a map to the list of its position; `out` counts from `begin`.
POINTGRAD_CLONES void list_rows(Pair* lists, int32_t* counts, int64_t stride, const Map& map, int64_t begin,
                                int64_t end) {
  const int32_t* source = map.sources + begin * map.volume;
  const uint32_t limit = static_cast<uint32_t>(map.num_features);
  for (int32_t row = 0; row < end - begin; ++row)
    for (int64_t k = 0; k < map.volume; ++k, ++source) {
      lists[k * stride + counts[k]] = {row, *source};
      counts[k] += static_cast<uint32_t>(*source) < limit;
    }
}

}  // namespace

// The rows of a tile that have an input at each position.
class Lists {
 public:
  Lists(int64_t rows, int64_t volume) : stride_(rows + kRows), pairs_(new Pair[stride_ * volume]), counts_(volume) {}

  void fill(const Map& map, int64_t begin, int64_t end) {
    std::fill(counts_.begin(), counts_.end(), 0);
    list_rows(pairs_.get(), counts_.data(), stride_, map, begin, end);
  }
  Pair* pairs(int64_t position) { return pairs_.get() + position * stride_; }
  int64_t count(int64_t position) const { return counts_[position]; }

  // The most rows of a tile for which the lists fit into the second-level cache.
  static int64_t most_rows(int64_t volume) { return std::clamp<int64_t>((1 << 16) / volume, 16, 1024); }

 private:
  int64_t stride_;
  std::unique_ptr<Pair[]> pairs_;
  std::vector<int32_t> counts_;
};

// Channels are divided into groups, each with its own columns.
struct Channels {
  int64_t groups, inputs, outputs;  // inputs and outputs of one group
  int64_t in() const { return groups * inputs; }
  int64_t out() const { return groups * outputs; }
  bool depthwise() const { return inputs == 1 && outputs == 1; }
};

// Columns that are processed together: `count` of them, in `vectors` vectors.
struct Panel {
  int64_t input, column, count;  // the first input and the first column
  int vectors;
};

template <class W> std::vector<Panel> panels_of(const Channels& channels, int64_t most) {
  std::vector<Panel> panels;
  const int64_t lanes = vector_lanes<W>();
  for (int64_t group = 0; group < channels.groups; ++group)
    for (int64_t column = 0; column < channels.outputs; column += most) {
      const int64_t count = std::min(most, channels.outputs - column);
      panels.push_back({group * channels.inputs, group * channels.outputs + column, count,
                        static_cast<int>((count + lanes - 1) / lanes)});
    }
  return panels;
}

// Memory that begins on a cache line, because loads of whole vectors across two lines are slow.
template <class W> class Lines {
 public:
  explicit Lines(int64_t count) : memory_(new W[count + 64 / sizeof(W)]), data_(memory_.get()) {
    while (reinterpret_cast<uintptr_t>(data_) % 64 != 0) ++data_;
  }
  W* data() const { return data_; }

 private:
  std::unique_ptr<W[]> memory_;
  W* data_;
};

}  // namespace sparse
}  // namespace pointgrad
