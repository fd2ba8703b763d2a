// Sparse convolution and its gradient by the weight.
//
// Rows of the output are processed in tiles that stay in the second-level cache. For each kernel position, the rows of a
// tile that have an input are listed, and multiplied with the matrix of the position six at a time (products.h). The
// matrix is copied into a panel first. Each output belongs to one task, and sums are in the order of the positions, then
// of the channels, so results do not depend on how the work is divided.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "module.h"
#include "numbers.h"
#include "products.h"
#include "threads.h"

namespace pointgrad {
namespace {

using namespace sparse;

struct Map {
  const int32_t* sources;  // (rows, volume)
  int64_t rows, volume;
  int64_t num_features;  // rows of the features
  bool flip;             // the matrix of position k is number volume - 1 - k

  int64_t matrix(int64_t position) const { return flip ? volume - 1 - position : position; }

  // Lists the rows [begin, end) that have an input at a position; `out` counts from `begin`.
  POINTGRAD_INLINE int64_t list(Pair* pairs, int64_t position, int64_t begin, int64_t end) const {
    const int32_t* source = sources + begin * volume + position;
    const uint32_t limit = static_cast<uint32_t>(num_features);
    int64_t count = 0;
    for (int32_t row = 0; row < end - begin; ++row, source += volume) {
      pairs[count] = {row, *source};
      count += static_cast<uint32_t>(*source) < limit;
    }
    return count;
  }
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

template <class W> std::vector<Panel> panels_of(const Channels& channels) {
  std::vector<Panel> panels;
  const int64_t lanes = vector_lanes<W>();
  for (int64_t group = 0; group < channels.groups; ++group)
    for (int64_t column = 0; column < channels.outputs; column += panel_width<W>()) {
      const int64_t count = std::min<int64_t>(panel_width<W>(), channels.outputs - column);
      panels.push_back({group * channels.inputs, group * channels.outputs + column, count,
                        static_cast<int>((count + lanes - 1) / lanes)});
    }
  return panels;
}

// The number of rows of a tile: its features fill part of the second-level cache, and all threads have work.
int64_t tile_rows(int64_t rows, int64_t row_bytes, int threads) {
  const int64_t fitting = std::clamp<int64_t>((1 << 18) / std::max<int64_t>(row_bytes, 1), 128, 512);
  return std::clamp<int64_t>(rows / (4 * threads), 64, fitting);
}

// A weight (volume, inputs, columns) with any strides.
template <class T> struct Weight {
  const T* data;
  int64_t position_stride, input_stride, column_stride;

  // Copies rows [begin, end) of the columns of a panel, followed by zeros to the width of its vectors.
  POINTGRAD_INLINE void copy(wide<T>* to, int64_t position, const Panel& panel, int64_t width, int64_t begin,
                             int64_t end) const {
    const T* from = data + position * position_stride + panel.column * column_stride;
    if (panel.count < width) std::fill(to, to + (end - begin) * width, wide<T>(0));
    if (column_stride == 1) {
      for (int64_t c = begin; c < end; ++c)
        for (int64_t j = 0; j < panel.count; ++j) to[(c - begin) * width + j] = widen(from[c * input_stride + j]);
    } else {
      for (int64_t j = 0; j < panel.count; ++j)
        for (int64_t c = begin; c < end; ++c)
          to[(c - begin) * width + j] = widen(from[c * input_stride + j * column_stride]);
    }
  }
};

// The columns of a panel for rows [begin, end).
template <class T>
POINTGRAD_CLONES void copy_matrix(wide<T>* to, const Weight<T>& weight, int64_t position, const Panel& panel,
                                  int64_t width, int64_t begin, int64_t end) {
  weight.copy(to, position, panel, width, begin, end);
}

template <class T>
POINTGRAD_CLONES void write_rows(T* out, const wide<T>* sums, int64_t rows, int64_t columns, int64_t out_stride,
                                 int64_t stride) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t c = 0; c < columns; ++c) out[row * out_stride + c] = narrow<T>(sums[row * stride + c]);
}

POINTGRAD_CLONES int64_t list_rows(Pair* pairs, const Map& map, int64_t position, int64_t begin, int64_t end) {
  return map.list(pairs, position, begin, end);
}

template <class T> class Convolution {
 public:
  using W = wide<T>;

  Convolution(T* out, const T* features, const Weight<T>& weight, const Map& map, const Channels& channels, int threads)
      : out_(out), features_(features), weight_(weight), map_(map), channels_(channels) {
    const std::vector<Panel> panels = panels_of<W>(channels);
    const int64_t tile = tile_rows(map.rows, channels.in() * sizeof(W), threads);
    const int64_t tiles = (map.rows + tile - 1) / tile, count = static_cast<int64_t>(panels.size());
    // A task has all panels of a tile, unless there are few tiles.
    const int64_t parts = tiles >= 4 * threads ? 1 : count;
    const int64_t tasks = tiles * parts;
    std::atomic<int64_t> next{0};
    run_tasks(std::min<int64_t>(tasks, threads), threads, [&](int64_t) {
      Scratch scratch(tile);
      for (int64_t task; (task = next.fetch_add(1)) < tasks;) {
        const int64_t begin = task / parts * tile, end = std::min(map.rows, begin + tile), part = task % parts;
        for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) add(panels[i], begin, end, scratch);
      }
    });
  }

 private:
  struct Scratch {
    explicit Scratch(int64_t rows)
        : pairs(rows + kRows), sums((rows + 1) * panel_width<W>()), matrix(kInputs * panel_width<W>()) {}
    std::vector<Pair> pairs;
    std::vector<W> sums;  // its last row belongs to no output
    std::vector<W> matrix;
  };

  void add(const Panel& panel, int64_t begin, int64_t end, Scratch& scratch) const {
    const int64_t width = panel.vectors * vector_lanes<W>(), rows = end - begin;
    Pair* pairs = scratch.pairs.data();
    std::fill(scratch.sums.begin(), scratch.sums.begin() + (rows + 1) * width, W(0));
    for (int64_t k = 0; k < map_.volume; ++k) {
      int64_t count = list_rows(pairs, map_, k, begin, end);
      if (count == 0) continue;
      while (count % kRows != 0) {
        pairs[count] = {static_cast<int32_t>(rows), pairs[0].in};
        ++count;
      }
      for (int64_t c = 0; c < channels_.inputs; c += kInputs) {
        const int64_t last = std::min(channels_.inputs, c + kInputs);
        copy_matrix<T>(scratch.matrix.data(), weight_, map_.matrix(k), panel, width, c, last);
        multiply(RowProducts<T>{scratch.sums.data(), width, features_ + panel.input + c, channels_.in(), pairs, count,
                                scratch.matrix.data(), last - c},
                 panel.vectors);
      }
    }
    write_rows<T>(out_ + begin * channels_.out() + panel.column, scratch.sums.data(), rows, panel.count,
                  channels_.out(), width);
  }

  T* out_;
  const T* features_;
  const Weight<T>& weight_;
  const Map& map_;
  const Channels& channels_;
};

// Each channel with one factor per position: rows [begin, end).
template <class T>
POINTGRAD_CLONES void convolve_depthwise(T* out, const T* features, const T* weight, const Map& map, int64_t channels,
                                         int64_t begin, int64_t end) {
  std::vector<wide<T>> sums(channels);
  for (int64_t row = begin; row < end; ++row) {
    std::fill(sums.begin(), sums.end(), wide<T>(0));
    wide<T>* __restrict sum = sums.data();
    for (int64_t k = 0; k < map.volume; ++k) {
      const int64_t source = map.sources[row * map.volume + k];
      if (source < 0 || source >= map.num_features) continue;
      const T* __restrict from = features + source * channels;
      const T* __restrict factor = weight + map.matrix(k) * channels;
      for (int64_t c = 0; c < channels; ++c) sum[c] += widen(from[c]) * widen(factor[c]);
    }
    for (int64_t c = 0; c < channels; ++c) out[row * channels + c] = narrow<T>(sum[c]);
  }
}

constexpr int64_t kValuesPerTask = 1 << 15;

void sparse_conv(Output out, Input features, Input weight, In<int32_t> sources, DType dtype, int64_t rows,
                 int64_t volume, int64_t num_features, int64_t groups, int64_t inputs, int64_t outputs,
                 int64_t position_stride, int64_t input_stride, int64_t column_stride, bool flip, Threads threads) {
  nb::gil_scoped_release release;
  const Map map{sources, rows, volume, num_features, flip};
  const Channels channels{groups, inputs, outputs};
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    if (channels.depthwise()) {
      const int64_t grain = std::max<int64_t>(1, kValuesPerTask / (volume * groups));
      return parallel_for(rows, grain, threads, [&](int64_t begin, int64_t end) {
        convolve_depthwise<T>(out.as<T>(), features.as<T>(), weight.as<T>(), map, groups, begin, end);
      });
    }
    const Weight<T> matrices{weight.as<T>(), position_stride, input_stride, column_stride};
    Convolution<T>(out.as<T>(), features.as<T>(), matrices, map, channels, threads);
  });
}

// to[i] (padded) = rows[pair i], with zeros after the first `count` values. `side` selects the row of a pair.
template <class T>
POINTGRAD_CLONES void copy_pairs(wide<T>* __restrict to, const T* __restrict rows, const Pair* pairs,
                                 int32_t Pair::*side, int64_t number, int64_t stride, int64_t count, int64_t padded) {
  for (int64_t i = 0; i < number; ++i, to += padded) {
    const T* from = rows + pairs[i].*side * stride;
    for (int64_t c = 0; c < count; ++c) to[c] = widen(from[c]);
    for (int64_t c = count; c < padded; ++c) to[c] = wide<T>(0);
  }
}

// Adds the sums of the other segments, which are `stride` values apart, to those of the first.
template <class W>
POINTGRAD_CLONES void add_segments(W* sums, int64_t stride, int64_t segments, int64_t count) {
  for (int64_t segment = 1; segment < segments; ++segment)
    for (int64_t i = 0; i < count; ++i) sums[i] += sums[segment * stride + i];
}

// The gradient by the weight. Rows are divided into segments that depend on sizes only, and their sums are added in
// order. Within a segment, tile by tile and for each position, listed rows of features and gradients are copied into
// panels, whose product is added to the sums of the position.
template <class T> class WeightGradient {
 public:
  using W = wide<T>;

  WeightGradient(T* out, const T* features, const T* grad, const Map& map, const Channels& channels, int threads)
      : features_(features), grad_(grad), map_(map), channels_(channels) {
    for (const Panel& panel : panels_of<W>(channels)) {
      const int64_t parts = (channels.inputs + kMostInputs - 1) / kMostInputs;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t begin = channels.inputs * part / parts, end = channels.inputs * (part + 1) / parts;
        const int64_t padded = (end - begin + kRows - 1) / kRows * kRows;
        blocks_.push_back({panel, begin, end, padded, size_});
        size_ += padded * panel.vectors * vector_lanes<W>() * map.volume;
      }
    }
    const int64_t blocks = static_cast<int64_t>(blocks_.size());
    segments_ = std::clamp<int64_t>(16 / std::max<int64_t>(blocks, 1), 1, std::max<int64_t>(1, map.rows >> 13));
    sums_.reset(new W[segments_ * size_]);
    run_tasks(segments_ * blocks, threads, [&](int64_t task) { add(blocks_[task % blocks], task / blocks); });
    parallel_for(blocks * map.volume, 1, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) write(out, blocks_[i / map.volume], i % map.volume);
    });
  }

 private:
  static constexpr int64_t kMostInputs = 96, kPairs = 64;

  struct Block {
    Panel panel;
    int64_t begin, end, padded;  // inputs of the group, and their number with those that fill kRows
    int64_t offset;              // of its sums
    int64_t width() const { return panel.vectors * vector_lanes<W>(); }
  };

  void add(const Block& block, int64_t segment) const {
    const int64_t width = block.width(), inputs = block.end - block.begin;
    const int64_t first = map_.rows * segment / segments_, last = map_.rows * (segment + 1) / segments_;
    const int64_t tile = 512;
    std::vector<Pair> pairs(tile);
    std::vector<W> left(kPairs * block.padded), right(kPairs * width);
    W* sums = sums_.get() + segment * size_ + block.offset;
    std::fill(sums, sums + map_.volume * block.padded * width, W(0));
    for (int64_t begin = first; begin < last; begin += tile)
      for (int64_t k = 0; k < map_.volume; ++k) {
        const int64_t end = std::min(last, begin + tile), count = list_rows(pairs.data(), map_, k, begin, end);
        for (int64_t i = 0; i < count; i += kPairs) {
          const int64_t some = std::min(kPairs, count - i);
          copy_rows(left.data(), right.data(), block, pairs.data() + i, some, begin, inputs, width);
          multiply(OuterProducts<W>{sums + k * block.padded * width, left.data(), right.data(), some, block.padded},
                   block.panel.vectors);
        }
      }
  }

  void copy_rows(W* left, W* right, const Block& block, const Pair* pairs, int64_t count, int64_t begin, int64_t inputs,
                 int64_t width) const {
    const T* features = features_ + block.panel.input + block.begin;
    copy_pairs<T>(left, features, pairs, &Pair::in, count, channels_.in(), inputs, block.padded);
    copy_pairs<T>(right, grad_ + begin * channels_.out() + block.panel.column, pairs, &Pair::out, count,
                  channels_.out(), block.panel.count, width);
  }

  void write(T* out, const Block& block, int64_t position) const {
    const int64_t width = block.width(), inputs = block.end - block.begin, size = block.padded * width;
    W* sums = sums_.get() + block.offset + position * size;
    add_segments<W>(sums, size_, segments_, inputs * width);
    T* to = out + (map_.matrix(position) * channels_.inputs + block.begin) * channels_.out() + block.panel.column;
    write_rows<T>(to, sums, inputs, block.panel.count, channels_.out(), width);
  }

  const T* features_;
  const T* grad_;
  const Map& map_;
  const Channels& channels_;
  std::vector<Block> blocks_;
  int64_t segments_, size_ = 0;  // of the sums of one segment
  std::unique_ptr<W[]> sums_;
};

// The sums (volume, channels) of rows [begin, end) for one factor per channel and position.
template <class T>
POINTGRAD_CLONES void add_depthwise(wide<T>* sums, const T* features, const T* grad, const Map& map, int64_t channels,
                                    int64_t begin, int64_t end) {
  std::fill(sums, sums + map.volume * channels, wide<T>(0));
  for (int64_t row = begin; row < end; ++row)
    for (int64_t k = 0; k < map.volume; ++k) {
      const int64_t source = map.sources[row * map.volume + k];
      if (source < 0 || source >= map.num_features) continue;
      const T* __restrict left = features + source * channels;
      const T* __restrict right = grad + row * channels;
      wide<T>* __restrict sum = sums + k * channels;
      for (int64_t c = 0; c < channels; ++c) sum[c] += widen(left[c]) * widen(right[c]);
    }
}

template <class T>
void weight_gradient_depthwise(T* out, const T* features, const T* grad, const Map& map, int64_t channels,
                               int threads) {
  const int64_t size = map.volume * channels, segments = std::clamp<int64_t>(map.rows >> 12, 1, 16);
  std::vector<wide<T>> sums(segments * size);
  run_tasks(segments, threads, [&](int64_t i) {
    add_depthwise<T>(sums.data() + i * size, features, grad, map, channels, map.rows * i / segments,
                     map.rows * (i + 1) / segments);
  });
  add_segments<wide<T>>(sums.data(), size, segments, size);
  for (int64_t k = 0; k < map.volume; ++k)
    write_rows<T>(out + map.matrix(k) * channels, sums.data() + k * channels, 1, channels, channels, channels);
}

void sparse_conv_weight(Output out, Input features, Input grad, In<int32_t> sources, DType dtype, int64_t rows,
                        int64_t volume, int64_t num_features, int64_t groups, int64_t inputs, int64_t outputs,
                        bool flip, Threads threads) {
  nb::gil_scoped_release release;
  const Map map{sources, rows, volume, num_features, flip};
  const Channels channels{groups, inputs, outputs};
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    if (channels.depthwise())
      return weight_gradient_depthwise<T>(out.as<T>(), features.as<T>(), grad.as<T>(), map, groups, threads);
    WeightGradient<T>(out.as<T>(), features.as<T>(), grad.as<T>(), map, channels, threads);
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("sparse_conv", &sparse_conv, nb::kw_only(), "out"_a, "features"_a, "weight"_a, "sources"_a, "dtype"_a,
             "rows"_a, "volume"_a, "num_features"_a, "groups"_a, "inputs"_a, "outputs"_a, "position_stride"_a,
             "input_stride"_a, "column_stride"_a, "flip"_a, kThreads);
  module.def("sparse_conv_weight", &sparse_conv_weight, nb::kw_only(), "out"_a, "features"_a, "grad"_a, "sources"_a,
             "dtype"_a, "rows"_a, "volume"_a, "num_features"_a, "groups"_a, "inputs"_a, "outputs"_a, "flip"_a,
             kThreads);
}
