// Sparse convolution.
//
// Rows of the output are processed in tiles that stay in the second-level cache. For each kernel position, the rows of a
// tile that have an input are listed, and multiplied with the matrix of the position six at a time (products.h). The
// matrix is copied into a panel first. Each output belongs to one task, and sums are in the order of the positions, then
// of the channels, so results do not depend on how the work is divided.
//
// After a ReLU about half of the features are zero. Then the others are listed once, and only they are multiplied, one
// row at a time. The sums have the same bits.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "module.h"
#include "numbers.h"
#include "products.h"
#include "tables.h"
#include "threads.h"

#if defined(POINTGRAD_LEVELS)
#include <immintrin.h>
#endif

namespace pointgrad {
namespace {

using namespace sparse;

constexpr int64_t kValuesPerTask = 1 << 15;

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

// Copies rows [begin, end) of the columns of a panel. Returns whether all values are finite.
template <class T>
POINTGRAD_CLONES bool copy_matrix(wide<T>* to, const Weight<T>& weight, int64_t position, const Panel& panel,
                                  int64_t width, int64_t begin, int64_t end) {
  weight.copy(to, position, panel, width, begin, end);
  auto largest = magnitude(wide<T>(0));
  for (int64_t i = 0; i < (end - begin) * width; ++i) largest = std::max(largest, magnitude(to[i]));
  return largest < magnitude(std::numeric_limits<wide<T>>::infinity());
}

// Operations on the sums before they are rounded, in inference: relu(sums * scale + shift + added).
template <class T> struct Finish {
  const wide<T>* scale;  // (columns,), or null without scale and shift
  const wide<T>* shift;
  const T* added;  // (rows, columns), or null
  bool relu;

  Finish at(int64_t row, int64_t column, int64_t stride) const {
    return {scale == nullptr ? nullptr : scale + column, scale == nullptr ? nullptr : shift + column,
            added == nullptr ? nullptr : added + row * stride + column, relu};
  }
};

// Rows of the sums are `stride` values apart, those of the output and of what is added `out_stride`.
template <class T>
POINTGRAD_CLONES void write_rows(T* out, wide<T>* sums, const Finish<T>& finish, int64_t rows, int64_t columns,
                                 int64_t out_stride, int64_t stride) {
  using W = wide<T>;
  const W* __restrict scale = finish.scale;
  const W* __restrict shift = finish.shift;
  for (int64_t row = 0; row < rows; ++row, sums += stride, out += out_stride) {
    if (scale != nullptr)
      for (int64_t c = 0; c < columns; ++c) sums[c] = sums[c] * scale[c] + shift[c];
    if (finish.added != nullptr)
      for (int64_t c = 0; c < columns; ++c) sums[c] += widen(finish.added[row * out_stride + c]);
    if (finish.relu)
      for (int64_t c = 0; c < columns; ++c) sums[c] = sums[c] < 0 ? W(0) : sums[c];  // NaN remains
    for (int64_t c = 0; c < columns; ++c) out[c] = narrow<T>(sums[c]);
  }
}

// Writes the entries of `count` values that are not zero, and returns their number.
template <class T> POINTGRAD_INLINE int64_t list_entries(Entry<wide<T>>* entries, const T* values, int64_t count) {
  int64_t found = 0;
  for (int64_t c = 0; c < count; ++c) {
    const wide<T> value = widen(values[c]);
    entries[found] = {value, static_cast<typename Entry<wide<T>>::Index>(c)};
    found += magnitude(value) != 0;
  }
  return found;
}

#if defined(POINTGRAD_LEVELS)
POINTGRAD_TARGET_V4 int64_t list_entries_v4(Entry<float>* entries, const float* values, int64_t count) {
  const __m512i step = _mm512_set1_epi64(int64_t{8} << 32);
  __m512i channels = _mm512_slli_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), 32);
  int64_t found = 0, c = 0;
  for (; c + 8 <= count; c += 8, channels = _mm512_add_epi64(channels, step)) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + c));
    const __mmask8 used = _mm256_test_epi32_mask(bits, _mm256_set1_epi32(0x7fffffff));
    const __m512i both = _mm512_or_si512(_mm512_maskz_cvtepu32_epi64(0xff, bits), channels);
    _mm512_storeu_si512(entries + found, _mm512_maskz_compress_epi64(used, both));
    found += __builtin_popcount(used);
  }
  for (; c < count; ++c) {
    entries[found] = {values[c], static_cast<int32_t>(c)};
    found += magnitude(values[c]) != 0;
  }
  return found;
}
#endif

// Lists the entries of rows [begin, end), in blocks of `size` channels.
template <class T>
void list_entries(Entry<wide<T>>* entries, uint8_t* counts, const T* features, int64_t channels, int64_t size,
                  int64_t begin, int64_t end) {
  counts += begin * ((channels + size - 1) / size);
  for (int64_t row = begin; row < end; ++row)
    for (int64_t first = 0; first < channels; first += size) {
      const T* from = features + row * channels + first;
      Entry<wide<T>>* to = entries + row * channels + first;
      const int64_t count = std::min(size, channels - first);
      int64_t found;
#if defined(POINTGRAD_LEVELS)
      if constexpr (std::is_same_v<T, float>) {
        found = vector_bytes() == 64 ? list_entries_v4(to, from, count) : list_entries<T>(to, from, count);
      } else
#endif
        found = list_entries<T>(to, from, count);
      *counts++ = static_cast<uint8_t>(found);
    }
}

// sums[out] += features[in] @ matrix, for a matrix that is not finite, whose products with zero are NaN.
template <class T>
void multiply_all(wide<T>* sums, const T* features, int64_t channels, const Pair* pairs, int64_t count,
                  const wide<T>* matrix, int64_t inputs, int64_t width) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < inputs; ++c)
      for (int64_t j = 0; j < width; ++j)
        sums[pairs[i].out * width + j] += widen(features[pairs[i].in * channels + c]) * matrix[c * width + j];
}

template <class T> class Convolution {
 public:
  using W = wide<T>;

  // `entries` is memory for an entry of each feature, or null if most features are not zero.
  Convolution(T* out, const T* features, const Weight<T>& weight, const Map& map, const Channels& channels,
              Entry<W>* entries, const Finish<T>& finish, int threads)
      : out_(out),
        features_(features),
        weight_(weight),
        map_(map),
        channels_(channels),
        entries_(entries),
        finish_(finish) {
    const int64_t lanes = vector_lanes<W>();
    int64_t most = panel_width<W>();
    if (entries != nullptr) {
      const int64_t vectors = std::min<int64_t>(kEntryVectors, (channels.outputs + lanes - 1) / lanes);
      most = vectors * lanes;
      const int64_t fitting = std::min<int64_t>(kInputs, kMatrixBytes / (most * sizeof(W)));
      blocks_ = (channels.inputs + fitting - 1) / fitting;
      inputs_ = (channels.inputs + blocks_ - 1) / blocks_;
      blocks_ = (channels.inputs + inputs_ - 1) / inputs_;
      counts_.resize(map.num_features * blocks_);
      parallel_for(map.num_features, kValuesPerTask / channels.inputs + 1, threads, [&](int64_t begin, int64_t end) {
        list_entries<T>(entries, counts_.data(), features, channels.inputs, inputs_, begin, end);
      });
    }
    const std::vector<Panel> panels = panels_of<W>(channels, most);
    const int64_t count = static_cast<int64_t>(panels.size()), most_rows = Lists::most_rows(map.volume);
    const int64_t tile = std::clamp<int64_t>(map.rows * count / (2 * threads), std::min<int64_t>(64, most_rows), most_rows);
    const int64_t tiles = (map.rows + tile - 1) / tile;
    // A task has all panels of a tile, unless there are few tiles.
    const int64_t parts = tiles >= 4 * threads ? 1 : count, tasks = tiles * parts;
    std::atomic<int64_t> next{0};
    run_tasks(std::min<int64_t>(tasks, threads), threads, [&](int64_t) {
      Scratch scratch(tile, map.volume, most);
      for (int64_t task; (task = next.fetch_add(1)) < tasks;) {
        const int64_t begin = task / parts * tile, end = std::min(map.rows, begin + tile), part = task % parts;
        scratch.lists.fill(map, begin, end);
        for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) add(panels[i], begin, end, scratch);
      }
    });
  }

 private:
  static constexpr int64_t kMatrixBytes = 24 << 10;  // leaves part of the first-level cache to the rows

  struct Scratch {
    Scratch(int64_t rows, int64_t volume, int64_t width)
        : lists(rows, volume), sums((rows + 1) * width), matrix(kInputs * width) {}
    Lists lists;
    Lines<W> sums;  // its last row belongs to no output
    Lines<W> matrix;
  };

  void add(const Panel& panel, int64_t begin, int64_t end, Scratch& scratch) const {
    const int64_t width = panel.vectors * vector_lanes<W>(), rows = end - begin;
    W* sums = scratch.sums.data();
    W* matrix = scratch.matrix.data();
    std::fill(sums, sums + (rows + 1) * width, W(0));
    for (int64_t k = 0; k < map_.volume; ++k) {
      Pair* pairs = scratch.lists.pairs(k);
      const int64_t count = scratch.lists.count(k);
      if (count == 0) continue;
      for (int64_t c = 0; c < channels_.inputs; c += inputs_) {
        const int64_t last = std::min(channels_.inputs, c + inputs_);
        const bool finite = copy_matrix<T>(matrix, weight_, map_.matrix(k), panel, width, c, last);
        if (entries_ != nullptr && finite) {
          multiply(EntryProducts<W>{sums, entries_ + c, channels_.in(), counts_.data() + c / inputs_, blocks_, pairs,
                                    count, matrix},
                   panel.vectors);
          continue;
        }
        const T* features = features_ + panel.input + c;
        if (entries_ != nullptr) {
          multiply_all<T>(sums, features, channels_.in(), pairs, count, matrix, last - c, width);
          continue;
        }
        int64_t padded = count;
        while (padded % kRows != 0) pairs[padded++] = {static_cast<int32_t>(rows), pairs[0].in};
        multiply(RowProducts<T>{sums, width, features, channels_.in(), pairs, padded, matrix, last - c}, panel.vectors);
      }
    }
    const int64_t columns = channels_.out();
    write_rows<T>(out_ + begin * columns + panel.column, sums, finish_.at(begin, panel.column, columns), rows,
                  panel.count, columns, width);
  }

  T* out_;
  const T* features_;
  const Weight<T>& weight_;
  const Map& map_;
  const Channels& channels_;
  const Entry<W>* entries_;
  const Finish<T> finish_;
  int64_t inputs_ = kInputs;  // the most rows of a matrix that are used together
  int64_t blocks_ = 0;        // blocks of inputs_ channels
  std::vector<uint8_t> counts_;
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

// Whether at least a quarter of the values are zero, by a sample of the rows.
bool many_zeros(Input features, DType dtype, int64_t rows, int64_t channels) {
  const int64_t step = std::max<int64_t>(1, rows / 64);
  int64_t zeros = 0, all = 0;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t row = 0; row < rows; row += step, all += channels)
      for (int64_t c = 0; c < channels; ++c) zeros += magnitude(widen(features.as<T>()[row * channels + c])) == 0;
  });
  return zeros * 4 >= all;
}

// `scale`, `shift`, `added` and `relu` belong to Finish; the last two require the first.
void sparse_conv(Output out, Input features, Input weight, In<int32_t> sources, Output entries, Input scale,
                 Input shift, Input added, bool relu, DType dtype, int64_t rows, int64_t volume, int64_t num_features, int64_t groups, int64_t inputs, int64_t outputs,
                 int64_t position_stride, int64_t input_stride, int64_t column_stride, bool flip, Threads threads) {
  nb::gil_scoped_release release;
  const Map map{sources, rows, volume, num_features, flip};
  const Channels channels{groups, inputs, outputs};
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    if (channels.depthwise() && !scale) {
      const int64_t grain = std::max<int64_t>(1, kValuesPerTask / (volume * groups));
      return parallel_for(rows, grain, threads, [&](int64_t begin, int64_t end) {
        convolve_depthwise<T>(out.as<T>(), features.as<T>(), weight.as<T>(), map, groups, begin, end);
      });
    }
    const Weight<T> matrices{weight.as<T>(), position_stride, input_stride, column_stride};
    const Finish<T> finish{scale.as<wide<T>>(), shift.as<wide<T>>(), added.as<T>(), relu};
    Convolution<T>(out.as<T>(), features.as<T>(), matrices, map, channels, entries.as<Entry<wide<T>>>(), finish,
                   threads);
  });
}

// Rows of `left` with those of `right` beside them. torch.cat would leave threads of its own spinning on the cores that
// the next convolution needs.
void join_rows(Output out, Input left, Input right, int64_t rows, int64_t left_bytes, int64_t right_bytes,
               Threads threads) {
  nb::gil_scoped_release release;
  const int64_t bytes = left_bytes + right_bytes;
  parallel_for(rows, (1 << 17) / bytes + 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      char* to = out.as<char>() + row * bytes;
      std::memcpy(to, left.as<char>() + row * left_bytes, left_bytes);
      std::memcpy(to + left_bytes, right.as<char>() + row * right_bytes, right_bytes);
    }
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("many_zeros", &many_zeros, nb::kw_only(), "features"_a, "dtype"_a, "rows"_a, "channels"_a);
  module.def("join_rows", &join_rows, nb::kw_only(), "out"_a, "left"_a, "right"_a, "rows"_a, "left_bytes"_a,
             "right_bytes"_a, kThreads);
  module.def("sparse_conv", &sparse_conv, nb::kw_only(), "out"_a, "features"_a, "weight"_a, "sources"_a,
             "entries"_a.none(), "scale"_a.none(), "shift"_a.none(), "added"_a.none(), "relu"_a, "dtype"_a, "rows"_a,
             "volume"_a, "num_features"_a, "groups"_a, "inputs"_a, "outputs"_a, "position_stride"_a, "input_stride"_a,
             "column_stride"_a, "flip"_a, kThreads);
}
