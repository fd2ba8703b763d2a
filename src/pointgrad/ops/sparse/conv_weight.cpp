// The gradient of sparse convolution by the weight.
#include <algorithm>
#include <memory>
#include <vector>

#include "module.h"
#include "numbers.h"
#include "products.h"
#include "tables.h"
#include "threads.h"

namespace pointgrad {
namespace {

using namespace sparse;

template <class T>
POINTGRAD_CLONES void write_rows(T* out, const wide<T>* sums, int64_t rows, int64_t columns, int64_t out_stride,
                                 int64_t stride) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t c = 0; c < columns; ++c) out[row * out_stride + c] = narrow<T>(sums[row * stride + c]);
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
    for (const Panel& panel : panels_of<W>(channels, panel_width<W>())) {
      const int64_t parts = (channels.inputs + kMostInputs - 1) / kMostInputs;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t begin = channels.inputs * part / parts, end = channels.inputs * (part + 1) / parts;
        const int64_t padded = (end - begin + 1) / 2 * 2;
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
    int64_t begin, end, padded;  // inputs of the group, and their number, made even
    int64_t offset;              // begin of its sums
    int64_t width() const { return panel.vectors * vector_lanes<W>(); }
  };

  void add(const Block& block, int64_t segment) const {
    const int64_t width = block.width(), inputs = block.end - block.begin;
    const int64_t first = map_.rows * segment / segments_, last = map_.rows * (segment + 1) / segments_;
    const int64_t tile = Lists::most_rows(map_.volume);
    Lists lists(tile, map_.volume);
    const Lines<W> left(kPairs * block.padded), right(kPairs * width);
    W* sums = sums_.get() + segment * size_ + block.offset;
    std::fill(sums, sums + map_.volume * block.padded * width, W(0));
    for (int64_t begin = first; begin < last; begin += tile) {
      lists.fill(map_, begin, std::min(last, begin + tile));
      for (int64_t k = 0; k < map_.volume; ++k) {
        const int64_t count = lists.count(k);
        for (int64_t i = 0; i < count; i += kPairs) {
          const int64_t some = std::min(kPairs, count - i);
          copy_rows(left.data(), right.data(), block, lists.pairs(k) + i, some, begin, inputs, width);
          multiply(OuterProducts<W>{sums + k * block.padded * width, left.data(), right.data(), some, block.padded},
                   block.panel.vectors);
        }
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
  int64_t segments_, size_ = 0;  // number of segments, and of sums in each
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
  module.def("sparse_conv_weight", &sparse_conv_weight, nb::kw_only(), "out"_a, "features"_a, "grad"_a, "sources"_a,
             "dtype"_a, "rows"_a, "volume"_a, "num_features"_a, "groups"_a, "inputs"_a, "outputs"_a, "flip"_a,
             kThreads);
}
