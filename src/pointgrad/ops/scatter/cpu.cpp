// Reductions by index go tile by tile (tiles.h), reductions of segments piece by piece: long segments are cut at
// fixed places, so that they can be shared among threads and no result depends on how many there are.
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

constexpr int64_t kAhead = 16;  // rows to fetch before their turn: memory answers slowly
constexpr int64_t kElementsPerTask = 1 << 16;

// Whether a value goes before the best so far. The first of equals and the first NaN stay.
template <bool largest, class W> POINTGRAD_INLINE bool beats(W value, W best) {
  return (largest ? value > best : value < best) | ((value != value) & (best == best));
}

// How often each row is named; whole numbers may be added in any order.
void histogram(address counts, address index, int64_t batch, int64_t rows, int64_t picks, int threads) {
  nb::gil_scoped_release release;
  const int64_t total = batch * picks, cells = batch * rows;
  // A thread's own counts pay while there are more entries than rows.
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, total / std::max<int64_t>(cells, 1 << 15)));
  int64_t* out = at<int64_t>(counts);
  const int64_t* in = at<const int64_t>(index);
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

void scatter_extreme(address best, address arg, address values, address index, address scratch, int dtype,
                     int64_t batch, int64_t rows, int64_t picks, int64_t channels, bool largest, int threads) {
  nb::gil_scoped_release release;
  if (batch * rows * channels == 0) return;  // an empty tensor has no address
  if (batch * (picks + rows) * channels < kElementsPerTask) threads = 1;
  with_number_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const Tiles tiles(at<uint64_t>(scratch), at<const int64_t>(index), batch, rows, picks,
                      channels * (sizeof(T) + sizeof(int64_t)), threads);
    run_tasks(tiles.count(), threads, [&](int64_t tile) {
      const int64_t b = tiles.cloud(tile), first = tiles.first(tile), to = (b * rows + first) * channels;
      (largest ? extreme_of_tile<T, true> : extreme_of_tile<T, false>)(
          at<T>(best) + to, at<int64_t>(arg) + to, at<const T>(values) + b * picks * channels, tiles.begin(tile),
          tiles.end(tile), tiles.last(tile) - first, channels);
    });
  });
}

// out[b, arg[b, s, c], c] = grad[b, s, c], zero elsewhere. No place is named twice.
void place_elements(address out, address grad, address arg, int64_t element, int64_t batch, int64_t rows,
                    int64_t groups, int64_t channels, int threads) {
  nb::gil_scoped_release release;
  const int64_t total = batch * groups * channels;
  parallel_for(batch * rows * channels, 1 << 16, threads, [&](int64_t begin, int64_t end) {
    std::memset(at<char>(out) + begin * element, 0, (end - begin) * element);
  });
  parallel_for(total, 1 << 14, threads, [&](int64_t begin, int64_t end) {
    const int64_t* place = at<const int64_t>(arg);
    for (int64_t i = begin; i < end; ++i) {
      // As unsigned numbers, so that -1 (nothing here) is out of range as well.
      if (static_cast<uint64_t>(place[i]) >= static_cast<uint64_t>(rows)) continue;
      const int64_t to = (i / (groups * channels) * rows + place[i]) * channels + i % channels;
      std::memcpy(at<char>(out) + to * element, at<const char>(grad) + i * element, element);
    }
  });
}

// Rows [begin, end) of one segment; `part` counts the pieces of cut segments, -1 for a segment in one piece.
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

  // body(piece, scratch): scratch is memory of the task's own, which the task's pieces use one after another.
  template <class Scratch, class Body> void run(int threads, Body&& body) const {
    run_tasks(static_cast<int64_t>(tasks.size()) - 1, threads, [&](int64_t task) {
      Scratch scratch;
      for (int64_t p = tasks[task]; p < tasks[task + 1]; ++p) body(all[p], scratch);
    });
  }

  // body(segment, first, last): parts [first, last) make up a segment that was cut.
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
    // The hardware's own fetching stops at the end of a page. Past the end nothing is read.
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

void segment_sum(address out, address values, address offsets, int dtype, int64_t segments, int64_t channels,
                 bool mean, int threads) {
  nb::gil_scoped_release release;
  const int64_t* bounds = at<const int64_t>(offsets);
  const Pieces pieces(bounds, segments, channels);
  with_number_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    using W = wide<T>;
    std::vector<W> parts(pieces.parts * channels);
    const auto finish = [&](int64_t s, const W* total) {
      finish_sum<T>(at<T>(out) + s * channels, total, channels, bounds[s + 1] - bounds[s], mean);
    };
    pieces.run<std::vector<W>>(threads, [&](const Piece& piece, std::vector<W>& row) {
      row.resize(channels);
      W* total = piece.part < 0 ? row.data() : parts.data() + piece.part * channels;
      sum_rows<T>(total, at<const T>(values) + piece.begin * channels, piece.end - piece.begin, channels);
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

// out[e] = grad[segment of e], divided by the segment's size for a mean.
template <class T> void share_of(T* out, const T* grad, int64_t channels, int64_t rows) {
  for (int64_t c = 0; c < channels; ++c) out[c] = narrow<T>(widen(grad[c]) / static_cast<wide<T>>(rows));
}

void segment_spread(address out, address grad, address offsets, int dtype, int64_t segments, int64_t rows,
                    int64_t channels, bool mean, int threads) {
  nb::gil_scoped_release release;
  if (channels == 0) return;  // an empty tensor has no address
  const int64_t* bounds = at<const int64_t>(offsets);
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const size_t row_bytes = channels * sizeof(T);
    const bool stream = rows * static_cast<int64_t>(row_bytes) > kLargerThanCache && can_copy_past_cache(at<void>(out), row_bytes);
    parallel_for(rows, kElementsPerTask / std::max<int64_t>(channels, 1), threads, [&](int64_t begin, int64_t end) {
      std::vector<T> share(channels);
      int64_t s = std::upper_bound(bounds, bounds + segments + 1, begin) - bounds - 1;
      for (int64_t e = begin; e < end; ++s) {
        const T* row = at<const T>(grad) + s * channels;
        if (mean) {
          share_of<T>(share.data(), row, channels, bounds[s + 1] - bounds[s]);
          row = share.data();
        }
        for (; e < std::min(end, bounds[s + 1]); ++e) {
          T* to = at<T>(out) + e * channels;
          stream ? copy_past_cache(to, row, row_bytes) : static_cast<void>(std::memcpy(static_cast<void*>(to), row, row_bytes));
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

void segment_extreme(address best, address arg, address values, address offsets, int dtype, int64_t segments,
                     int64_t channels, bool largest, int threads) {
  nb::gil_scoped_release release;
  if (channels == 0) return;  // an empty tensor has no address
  const Pieces pieces(at<const int64_t>(offsets), segments, channels);
  with_number_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    std::vector<T> parts(pieces.parts * channels);
    std::vector<int64_t> part_args(pieces.parts * channels);
    struct None {};
    pieces.run<None>(threads, [&](const Piece& piece, None&) {
      const bool whole = piece.part < 0;
      const int64_t to = (whole ? piece.segment : piece.part) * channels;
      (largest ? extreme_of_rows<T, true> : extreme_of_rows<T, false>)(
          (whole ? at<T>(best) : parts.data()) + to, (whole ? at<int64_t>(arg) : part_args.data()) + to,
          at<const T>(values), piece.begin, piece.end, channels);
    });
    pieces.each_cut_segment([&](int64_t segment, int64_t first, int64_t last) {
      for (int64_t c = 0; c < channels; ++c) {
        int64_t winner = first * channels + c;
        for (int64_t part = first + 1; part < last; ++part) {
          const auto value = widen(parts[part * channels + c]), so_far = widen(parts[winner]);
          if (largest ? beats<true>(value, so_far) : beats<false>(value, so_far)) winner = part * channels + c;
        }
        at<T>(best)[segment * channels + c] = parts[winner];
        at<int64_t>(arg)[segment * channels + c] = part_args[winner];
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
  // A segment of nothing but -inf: e^-inf gives 0 throughout. With +inf, inf - inf gives NaN, as it should.
  for (int64_t c = 0; c < channels; ++c) highest[c] = highest[c] == -std::numeric_limits<W>::infinity() ? W(0) : highest[c];
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

// Calls body(begin, end, scratch) for every segment, in tasks of similar work. A segment is one thread's; scratch is
// memory of the task's own, which its segments use one after another.
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

void segment_softmax(address out, address logits, address offsets, int dtype, int64_t segments, int64_t channels,
                     int threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    using W = wide<T>;
    for_each_segment<W>(at<const int64_t>(offsets), segments, channels, threads,
                        [&](int64_t begin, int64_t end, std::vector<W>& scratch) {
      scratch.resize((end - begin + 2) * channels);
      W* power = scratch.data() + 2 * channels;
      softmax_of_rows<T>(at<T>(out) + begin * channels, at<const T>(logits) + begin * channels, power, scratch.data(),
                         scratch.data() + channels, end - begin, channels);
    });
  });
}

void segment_softmax_backward(address out, address grad, address output, address offsets, int dtype, int64_t segments,
                              int64_t channels, int threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    using W = wide<T>;
    for_each_segment<W>(at<const int64_t>(offsets), segments, channels, threads,
                        [&](int64_t begin, int64_t end, std::vector<W>& total) {
      total.resize(channels);
      softmax_backward_of_rows<T>(at<T>(out) + begin * channels, at<const T>(grad) + begin * channels,
                                  at<const T>(output) + begin * channels, total.data(), end - begin, channels);
    });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  module.def("histogram", &pointgrad::histogram);
  module.def("scatter_extreme", &pointgrad::scatter_extreme);
  module.def("place_elements", &pointgrad::place_elements);
  module.def("segment_sum", &pointgrad::segment_sum);
  module.def("segment_spread", &pointgrad::segment_spread);
  module.def("segment_extreme", &pointgrad::segment_extreme);
  module.def("segment_softmax", &pointgrad::segment_softmax);
  module.def("segment_softmax_backward", &pointgrad::segment_softmax_backward);
}
