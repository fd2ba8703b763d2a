// Reductions by index work tile by tile (tiles.h). Reductions of segments work piece by piece: long segments are cut at
// fixed places and shared among threads, so the results do not depend on the number of threads.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "exponential.h"
#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"
#include "tiles.h"

namespace pointgrad {
namespace {

constexpr int64_t kAhead = 16;  // rows to prefetch
constexpr int64_t kElementsPerTask = 1 << 16;

// Whether a value replaces the best so far. Of equal values, and of NaNs, the first one stays.
template <bool largest, class W> POINTGRAD_INLINE bool beats(W value, W best) {
  return (largest ? value > best : value < best) | ((value != value) & (best == best));
}

// Integer counts may be added in any order.
void histogram(Out<int64_t> counts, In<int64_t> index, int64_t batch, int64_t rows, int64_t picks, Threads threads) {
  nb::gil_scoped_release release;
  const int64_t total = batch * picks, cells = batch * rows;
  // Separate counts per thread are faster if there are more entries than rows.
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, total / std::max<int64_t>(cells, 1 << 15)));
  int64_t* out = counts;
  const int64_t* in = index;
  std::fill(out, out + cells, int64_t{0});
  std::vector<std::vector<int64_t>> own(parts);
  run_tasks(parts, threads, [&](int64_t part) {
    int64_t* mine = out;
    if (part > 0) {
      own[part].assign(cells, 0);
      mine = own[part].data();
    }
    const int64_t end = total * (part + 1) / parts;
    for (int64_t i = total * part / parts; i < end;) {
      const int64_t cloud = i / picks, last = std::min(end, (cloud + 1) * picks);
      int64_t* bins = mine + cloud * rows;
      for (; i < last; ++i)
        if (in[i] >= 0 && in[i] < rows) ++bins[in[i]];
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < cells; ++i) out[i] += own[part][i];
}

template <class T, bool largest>
POINTGRAD_CLONES void extreme_of_tile(T* __restrict best, int64_t* __restrict arg, const T* __restrict values,
                                      const uint64_t* entry, const uint64_t* end, int64_t rows, int64_t channels) {
  std::memset(static_cast<void*>(best), 0, rows * channels * sizeof(T));
  std::fill(arg, arg + rows * channels, int64_t{-1});
  for (; entry < end; ++entry) {
    if (entry + kAhead < end) prefetch(values + Tiles::pick(entry[kAhead]) * channels, channels * sizeof(T));
    const int64_t pick = Tiles::pick(*entry), row = Tiles::row(*entry) * channels;
    const T* from = values + pick * channels;
    for (int64_t c = 0; c < channels; ++c) {
      const bool take = (arg[row + c] < 0) | beats<largest>(widen(from[c]), widen(best[row + c]));
      best[row + c] = take ? from[c] : best[row + c];
      arg[row + c] = take ? pick : arg[row + c];
    }
  }
}

void scatter_extreme(Output best, Out<int64_t> arg, Input values, In<int64_t> index, Out<uint64_t> scratch,
                     DType dtype, int64_t batch, int64_t rows, int64_t picks, int64_t channels, bool largest,
                     Threads threads) {
  nb::gil_scoped_release release;
  if (batch * rows * channels == 0) return;  // an empty tensor has no address
  if (batch * (picks + rows) * channels < kElementsPerTask) threads.count = 1;
  with_number_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const int64_t row_bytes = channels * (sizeof(T) + sizeof(int64_t));
    const Tiles tiles(scratch, index, batch, rows, picks, row_bytes, threads);
    run_tasks(tiles.count(), threads, [&](int64_t tile) {
      const int64_t b = tiles.cloud(tile), first = tiles.first(tile), to = (b * rows + first) * channels;
      (largest ? extreme_of_tile<T, true> : extreme_of_tile<T, false>)(
          best.as<T>() + to, arg + to, values.as<T>() + b * picks * channels, tiles.begin(tile), tiles.end(tile),
          tiles.last(tile) - first, channels);
    });
  });
}

// out[b, arg[b, s, c], c] = grad[b, s, c], zero elsewhere. Each element is written at most once.
void place_elements(Output out, Input grad, In<int64_t> arg, int64_t value_bytes, int64_t batch, int64_t rows,
                    int64_t groups, int64_t channels, Threads threads) {
  nb::gil_scoped_release release;
  const int64_t total = batch * groups * channels;
  parallel_for(batch * rows * channels, 1 << 16, threads, [&](int64_t begin, int64_t end) {
    std::memset(out.as<char>() + begin * value_bytes, 0, (end - begin) * value_bytes);
  });
  parallel_for(total, 1 << 14, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      // Compared as unsigned numbers, -1 (no element) is out of range as well.
      if (static_cast<uint64_t>(arg[i]) >= static_cast<uint64_t>(rows)) continue;
      const int64_t to = (i / (groups * channels) * rows + arg[i]) * channels + i % channels;
      std::memcpy(out.as<char>() + to * value_bytes, grad.as<char>() + i * value_bytes, value_bytes);
    }
  });
}

// Rows [begin, end) of one segment. `part` numbers the pieces of cut segments and is -1 for a whole segment.
struct Piece {
  int64_t segment, begin, end, part;
};

struct Pieces {
  std::vector<Piece> all;
  std::vector<int64_t> tasks{0};  // pieces [tasks[i], tasks[i + 1]) are one task
  int64_t parts = 0;

  Pieces(const int64_t* offsets, int64_t segments, int64_t channels) {
    const int64_t longest = std::max<int64_t>(256, (int64_t{1} << 18) / std::max<int64_t>(channels, 1));
    all.reserve(segments);
    int64_t work = 0;
    for (int64_t s = 0; s < segments; ++s) {
      const bool cut = offsets[s + 1] - offsets[s] > longest;
      int64_t begin = offsets[s];
      do {
        const int64_t end = std::min(offsets[s + 1], begin + longest);
        all.push_back({s, begin, end, cut ? parts++ : -1});
        work += (end - begin + 1) * channels;
        if (work >= kElementsPerTask) tasks.push_back(static_cast<int64_t>(all.size())), work = 0;
        begin = end;
      } while (begin < offsets[s + 1]);
    }
    tasks.push_back(static_cast<int64_t>(all.size()));
  }

  // Calls body(piece, scratch). The pieces of a task share one scratch.
  template <class Scratch, class Body> void run(int threads, Body&& body) const {
    run_tasks(static_cast<int64_t>(tasks.size()) - 1, threads, [&](int64_t task) {
      Scratch scratch;
      for (int64_t p = tasks[task]; p < tasks[task + 1]; ++p) body(all[p], scratch);
    });
  }

  // Calls body(segment, first, last) for each segment that was cut, into parts [first, last).
  template <class Body> void each_cut_segment(Body&& body) const {
    for (size_t p = 0; p < all.size(); ++p) {
      if (all[p].part < 0) continue;
      const size_t first = p;
      while (p + 1 < all.size() && all[p + 1].segment == all[first].segment) ++p;
      body(all[first].segment, all[first].part, all[p].part + 1);
    }
  }
};

template <class T>
POINTGRAD_CLONES void sum_rows(wide<T>* __restrict total, const T* __restrict values, int64_t rows, int64_t channels) {
  std::fill(total, total + channels, wide<T>(0));
  for (int64_t r = 0; r < rows; ++r) {
    // Hardware prefetching stops at the end of a page. A prefetch past the end of the tensor is harmless.
    prefetch(values + (r + kAhead) * channels, channels * sizeof(T));
    for (int64_t c = 0; c < channels; ++c) total[c] = plus(total[c], widen(values[r * channels + c]));
  }
}

template <class T>
POINTGRAD_CLONES void finish_sum(T* __restrict out, const wide<T>* __restrict total, int64_t channels, int64_t rows,
                                 bool mean) {
  const wide<T> divisor = static_cast<wide<T>>(std::max<int64_t>(rows, 1));
  if (mean)
    for (int64_t c = 0; c < channels; ++c) out[c] = narrow<T>(total[c] / divisor);
  else
    for (int64_t c = 0; c < channels; ++c) out[c] = narrow<T>(total[c]);
}

void segment_sum(Output out, Input values, In<int64_t> offsets, DType dtype, int64_t segments, int64_t channels,
                 bool mean, Threads threads) {
  nb::gil_scoped_release release;
  const Pieces pieces(offsets, segments, channels);
  with_number_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    using W = wide<T>;
    std::vector<W> parts(pieces.parts * channels);
    const auto finish = [&](int64_t s, const W* total) {
      finish_sum<T>(out.as<T>() + s * channels, total, channels, offsets[s + 1] - offsets[s], mean);
    };
    pieces.run<std::vector<W>>(threads, [&](const Piece& piece, std::vector<W>& row) {
      row.resize(channels);
      W* total = piece.part < 0 ? row.data() : parts.data() + piece.part * channels;
      sum_rows<T>(total, values.as<T>() + piece.begin * channels, piece.end - piece.begin, channels);
      if (piece.part < 0) finish(piece.segment, total);
    });
    pieces.each_cut_segment([&](int64_t segment, int64_t first, int64_t last) {
      W* total = parts.data() + first * channels;
      for (int64_t part = first + 1; part < last; ++part)
        for (int64_t c = 0; c < channels; ++c) total[c] = plus(total[c], parts[part * channels + c]);
      finish(segment, total);
    });
  });
}

// The gradient of each row of a mean over `rows` rows.
template <class T> void share_of(T* out, const T* grad, int64_t channels, int64_t rows) {
  for (int64_t c = 0; c < channels; ++c) out[c] = narrow<T>(widen(grad[c]) / static_cast<wide<T>>(rows));
}

// out[e] = grad[segment of e], divided by the size of the segment for a mean.
void segment_spread(Output out, Input grad, In<int64_t> offsets, DType dtype, int64_t segments, int64_t rows,
                    int64_t channels, bool mean, Threads threads) {
  nb::gil_scoped_release release;
  if (channels == 0) return;  // an empty tensor has no address
  const int64_t* bounds = offsets;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const size_t row_bytes = channels * sizeof(T);
    const bool is_large = rows * static_cast<int64_t>(row_bytes) > kLargerThanCache;
    const bool stream = is_large && can_copy_past_cache(out.data, row_bytes);
    parallel_for(rows, kElementsPerTask / std::max<int64_t>(channels, 1), threads, [&](int64_t begin, int64_t end) {
      std::vector<T> share(channels);
      int64_t s = std::upper_bound(bounds, bounds + segments + 1, begin) - bounds - 1;
      for (int64_t e = begin; e < end; ++s) {
        const T* row = grad.as<T>() + s * channels;
        if (mean) {
          share_of<T>(share.data(), row, channels, bounds[s + 1] - bounds[s]);
          row = share.data();
        }
        for (; e < std::min(end, bounds[s + 1]); ++e) {
          T* to = out.as<T>() + e * channels;
          if (stream) {
            copy_past_cache(to, row, row_bytes);
          } else {
            std::memcpy(static_cast<void*>(to), row, row_bytes);
          }
        }
      }
      finish_copies();
    });
  });
}

template <class T, bool largest>
POINTGRAD_CLONES void extreme_of_rows(T* __restrict best, int64_t* __restrict arg, const T* __restrict values,
                                      int64_t begin, int64_t end, int64_t channels) {
  std::memset(static_cast<void*>(best), 0, channels * sizeof(T));
  std::fill(arg, arg + channels, int64_t{-1});
  for (int64_t row = begin; row < end; ++row)
    for (int64_t c = 0; c < channels; ++c) {
      const T value = values[row * channels + c];
      const bool take = (arg[c] < 0) | beats<largest>(widen(value), widen(best[c]));
      best[c] = take ? value : best[c];
      arg[c] = take ? row : arg[c];
    }
}

void segment_extreme(Output best, Out<int64_t> arg, Input values, In<int64_t> offsets, DType dtype, int64_t segments,
                     int64_t channels, bool largest, Threads threads) {
  nb::gil_scoped_release release;
  if (channels == 0) return;  // an empty tensor has no address
  const Pieces pieces(offsets, segments, channels);
  with_number_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    std::vector<T> parts(pieces.parts * channels);
    std::vector<int64_t> part_args(pieces.parts * channels);
    struct None {};
    pieces.run<None>(threads, [&](const Piece& piece, None&) {
      const bool whole = piece.part < 0;
      const int64_t to = (whole ? piece.segment : piece.part) * channels;
      (largest ? extreme_of_rows<T, true> : extreme_of_rows<T, false>)(
          (whole ? best.as<T>() : parts.data()) + to, (whole ? arg : part_args.data()) + to, values.as<T>(),
          piece.begin, piece.end, channels);
    });
    pieces.each_cut_segment([&](int64_t segment, int64_t first, int64_t last) {
      for (int64_t c = 0; c < channels; ++c) {
        int64_t winner = first * channels + c;
        for (int64_t part = first + 1; part < last; ++part) {
          const auto value = widen(parts[part * channels + c]), so_far = widen(parts[winner]);
          if (largest ? beats<true>(value, so_far) : beats<false>(value, so_far)) winner = part * channels + c;
        }
        best.as<T>()[segment * channels + c] = parts[winner];
        arg[segment * channels + c] = part_args[winner];
      }
    });
  });
}

template <class T>
POINTGRAD_CLONES void softmax_of_rows(T* __restrict out, const T* __restrict logits, wide<T>* __restrict power,
                                      wide<T>* __restrict highest, wide<T>* __restrict total, int64_t rows,
                                      int64_t channels) {
  using W = wide<T>;
  std::fill(highest, highest + channels, -std::numeric_limits<W>::infinity());
  std::fill(total, total + channels, W(0));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; ++c) {
      const W value = widen(logits[r * channels + c]);
      highest[c] = value > highest[c] ? value : highest[c];
    }
  // If all logits are -inf, e^-inf gives 0 everywhere. With +inf, inf - inf gives NaN, as intended.
  for (int64_t c = 0; c < channels; ++c)
    highest[c] = highest[c] == -std::numeric_limits<W>::infinity() ? W(0) : highest[c];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; ++c) power[r * channels + c] = widen(logits[r * channels + c]) - highest[c];
  for (int64_t i = 0; i < rows * channels; ++i) power[i] = exp_of_negative(power[i]);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; ++c) total[c] += power[r * channels + c];
  for (int64_t c = 0; c < channels; ++c) total[c] = total[c] == W(0) ? W(1) : total[c];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; ++c) out[r * channels + c] = narrow<T>(power[r * channels + c] / total[c]);
}

template <class T>
POINTGRAD_CLONES void softmax_backward_of_rows(T* __restrict out, const T* __restrict grad, const T* __restrict output,
                                               wide<T>* __restrict total, int64_t rows, int64_t channels) {
  std::fill(total, total + channels, wide<T>(0));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t i = r * channels + c;
      total[c] += widen(grad[i]) * widen(output[i]);
    }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t i = r * channels + c;
      out[i] = narrow<T>(widen(output[i]) * (widen(grad[i]) - total[c]));
    }
}

// Calls body(begin, end, scratch) for every segment, in tasks of similar work. A segment is never divided; the segments
// of a task share one scratch.
template <class W, class Body>
void for_each_segment(const int64_t* offsets, int64_t segments, int64_t channels, int threads, Body&& body) {
  std::vector<int64_t> tasks{0};
  int64_t work = 0;
  for (int64_t s = 0; s < segments; ++s) {
    work += (offsets[s + 1] - offsets[s] + 1) * channels;
    if (work >= kElementsPerTask) tasks.push_back(s + 1), work = 0;
  }
  tasks.push_back(segments);
  run_tasks(static_cast<int64_t>(tasks.size()) - 1, threads, [&](int64_t task) {
    std::vector<W> scratch;
    for (int64_t s = tasks[task]; s < tasks[task + 1]; ++s) body(offsets[s], offsets[s + 1], scratch);
  });
}

void segment_softmax(Output out, Input logits, In<int64_t> offsets, DType dtype, int64_t segments, int64_t channels,
                     Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    using W = wide<T>;
    const auto softmax = [&](int64_t begin, int64_t end, std::vector<W>& scratch) {
      scratch.resize((end - begin + 2) * channels);
      W* power = scratch.data() + 2 * channels;
      softmax_of_rows<T>(out.as<T>() + begin * channels, logits.as<T>() + begin * channels, power, scratch.data(),
                         scratch.data() + channels, end - begin, channels);
    };
    for_each_segment<W>(offsets, segments, channels, threads, softmax);
  });
}

void segment_softmax_backward(Output out, Input grad, Input output, In<int64_t> offsets, DType dtype, int64_t segments,
                              int64_t channels, Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    using W = wide<T>;
    const auto softmax_backward = [&](int64_t begin, int64_t end, std::vector<W>& total) {
      total.resize(channels);
      softmax_backward_of_rows<T>(out.as<T>() + begin * channels, grad.as<T>() + begin * channels,
                                  output.as<T>() + begin * channels, total.data(), end - begin, channels);
    };
    for_each_segment<W>(offsets, segments, channels, threads, softmax_backward);
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("histogram", &histogram, nb::kw_only(), "counts"_a, "index"_a, "batch"_a, "rows"_a, "picks"_a, kThreads);
  module.def("scatter_extreme", &scatter_extreme, nb::kw_only(), "best"_a, "arg"_a, "values"_a, "index"_a, "scratch"_a,
             "dtype"_a, "batch"_a, "rows"_a, "picks"_a, "channels"_a, "largest"_a, kThreads);
  module.def("place_elements", &place_elements, nb::kw_only(), "out"_a, "grad"_a, "arg"_a, "value_bytes"_a, "batch"_a,
             "rows"_a, "groups"_a, "channels"_a, kThreads);
  module.def("segment_sum", &segment_sum, nb::kw_only(), "out"_a, "values"_a, "offsets"_a, "dtype"_a, "segments"_a,
             "channels"_a, "mean"_a, kThreads);
  module.def("segment_spread", &segment_spread, nb::kw_only(), "out"_a, "grad"_a, "offsets"_a, "dtype"_a, "segments"_a,
             "rows"_a, "channels"_a, "mean"_a, kThreads);
  module.def("segment_extreme", &segment_extreme, nb::kw_only(), "best"_a, "arg"_a, "values"_a, "offsets"_a, "dtype"_a,
             "segments"_a, "channels"_a, "largest"_a, kThreads);
  module.def("segment_softmax", &segment_softmax, nb::kw_only(), "out"_a, "logits"_a, "offsets"_a, "dtype"_a,
             "segments"_a, "channels"_a, kThreads);
  module.def("segment_softmax_backward", &segment_softmax_backward, nb::kw_only(), "out"_a, "grad"_a, "output"_a,
             "offsets"_a, "dtype"_a, "segments"_a, "channels"_a, kThreads);
}
