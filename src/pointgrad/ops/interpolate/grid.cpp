// Sampling of a dense grid at points, the adjoint, and the derivative by the point. The C values of a corner are far
// apart in a (C, D, H, W) grid, so for many points the grid is first transposed into rows (D, H, W, C), or the result is
// summed in rows and transposed back. The formulas are derived in docs/operators/interpolate.md.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "cell.h"
#include "memory.h"
#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

constexpr int64_t kValuesPerTask = 1 << 15;
constexpr int64_t kPiece = 64;  // points whose cells are computed and prefetched before they are used

enum Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

struct Shape {
  int64_t sizes[3];  // along x, y and z: W, H, D
  int padding;
  bool align_corners;

  int64_t voxels() const { return sizes[0] * sizes[1] * sizes[2]; }
};

// Converts one coordinate in [-1, 1] to units of voxels (-2 if it samples nothing), with its derivative `speed`. Agrees
// with PyTorch, at kinks too.
template <class R> struct Units {
  R position, speed;

  POINTGRAD_INLINE Units(R p, int64_t count, int padding, bool align_corners) {
    const R size = static_cast<R>(count), last = size - R(1);
    position = align_corners ? (p + R(1)) / R(2) * last : ((p + R(1)) * size - R(1)) / R(2);
    speed = (align_corners ? last : size) / R(2);
    if (padding == kReflection) reflect(align_corners ? R(0) : R(-0.5), align_corners ? last : size);
    if (padding != kZeros) {
      if (position <= R(0)) {
        position = speed = R(0);
      } else if (position >= last) {
        position = last;
        speed = R(0);
      }
    }
    if (!(position >= R(-1) && position < size)) position = R(-2);  // NaN too
  }

 private:
  POINTGRAD_INLINE void reflect(R low, R span) {
    R away = position - low;
    if (away < R(0)) speed = -speed;
    away = std::fabs(away);
    // A period crosses the grid twice. fmod is exact at any distance. A grid of one voxel has no extent.
    if (!(away < span)) away = std::fmod(away, R(2) * std::max(span, R(1)));
    const bool turned = away > span;
    if (turned) speed = -speed;
    position = (turned ? R(2) * span - away : away) + low;
  }
};

// The position of a point: the lower voxel along each axis, and the weights within the cell.
template <class T> struct Place {
  using R = wide<T>;
  Cell<R> cell;
  int64_t lowest[3];
  R speed[3], along[3];
  const R* tangent;

  POINTGRAD_INLINE Place(const Shape& shape, const T* points, const T* tangents, int64_t i)
      : tangent(tangents ? along : nullptr) {
    for (int axis = 0; axis < 3; ++axis) {
      const Units<R> units(widen(points[3 * i + axis]), shape.sizes[axis], shape.padding, shape.align_corners);
      const R below = std::floor(units.position);
      lowest[axis] = static_cast<int64_t>(below);
      cell.share[axis] = units.position - below;
      speed[axis] = units.speed;
      if (tangents != nullptr) along[axis] = widen(tangents[3 * i + axis]) * units.speed;
    }
  }
  Place(const Place&) = delete;  // `tangent` points to a member

  // The voxels of the corners, -1 for corners outside of the grid.
  POINTGRAD_INLINE void voxels(const Shape& shape, int64_t* out) const {
    bool inside[3][2];
    for (int axis = 0; axis < 3; ++axis)
      for (int upper = 0; upper < 2; ++upper) {
        const int64_t at = lowest[axis] + upper;
        inside[axis][upper] = at >= 0 && at < shape.sizes[axis];
      }
    for (int k = 0; k < 8; ++k) {
      const int x = k / 4, y = k / 2 % 2, z = k % 2;
      const int64_t row = (lowest[2] + z) * shape.sizes[1] + lowest[1] + y;
      out[k] = inside[0][x] && inside[1][y] && inside[2][z] ? row * shape.sizes[0] + lowest[0] + x : -1;
    }
  }
};

// The voxels of one cloud, in rows (V, C) or channels first (C, V).
template <class T> struct Cells {
  T* data;
  int64_t voxels, channels;
  bool in_rows;

  POINTGRAD_INLINE T* row(int64_t voxel) const { return data + voxel * channels; }

  POINTGRAD_INLINE void fetch(const int64_t* corners) const {
    if (!in_rows) return;
    for (int k = 0; k < 8; ++k)
      if (corners[k] >= 0) prefetch(row(corners[k]), channels * sizeof(T));
  }

  // The C values of a voxel in consecutive memory, copied to `space` if necessary.
  POINTGRAD_INLINE const T* values(int64_t voxel, std::remove_const_t<T>* space) const {
    if (in_rows) return row(voxel);
    for (int64_t c = 0; c < channels; ++c) space[c] = data[c * voxels + voxel];
    return space;
  }
};

// The voxels and weights of a piece of points, computed before the first of them is used, which allows prefetching.
template <class R> struct Piece {
  int64_t voxels[kPiece][8];
  R weights[kPiece][8];
};

// Points [begin, end) of one cloud.
template <class T>
POINTGRAD_CLONES void sample(T* __restrict out, Cells<const T> cells, const Shape& shape, const T* points,
                             const T* tangent, int64_t begin, int64_t end) {
  using R = wide<T>;
  const int64_t channels = cells.channels;
  const std::vector<T> nothing(channels, narrow<T>(R(0)));
  std::vector<T> space(cells.in_rows ? 0 : 8 * channels);
  Piece<R> piece;
  for (int64_t base = begin; base < end; base += kPiece) {
    const int64_t count = std::min(kPiece, end - base);
    for (int64_t j = 0; j < count; ++j) {
      const Place<T> place(shape, points, tangent, base + j);
      place.voxels(shape, piece.voxels[j]);
      place.cell.weights(place.tangent, piece.weights[j]);
      cells.fetch(piece.voxels[j]);
    }
    for (int64_t j = 0; j < count; ++j) {
      R w[8];
      const T* v[8];
      for (int k = 0; k < 8; ++k) {
        const int64_t voxel = piece.voxels[j][k];
        w[k] = voxel < 0 ? R(0) : piece.weights[j][k];
        v[k] = voxel < 0 ? nothing.data() : cells.values(voxel, space.data() + (cells.in_rows ? 0 : k * channels));
      }
      T* o = out + (base + j) * channels;
      for (int64_t c = 0; c < channels; ++c) {
        R sum = w[0] * widen(v[0][c]);
        for (int k = 1; k < 8; ++k) sum += w[k] * widen(v[k][c]);
        o[c] = narrow<T>(sum);
      }
    }
  }
}

template <class T>
POINTGRAD_CLONES void slope(T* __restrict out, const T* __restrict grad, Cells<const T> cells, const Shape& shape,
                            const T* points, const T* tangent, int64_t begin, int64_t end) {
  using R = wide<T>;
  const int64_t channels = cells.channels;
  std::vector<T> space(cells.in_rows ? 0 : channels);
  int64_t voxels[kPiece][8];
  for (int64_t base = begin; base < end; base += kPiece) {
    const int64_t count = std::min(kPiece, end - base);
    for (int64_t j = 0; j < count; ++j) {
      Place<T>(shape, points, nullptr, base + j).voxels(shape, voxels[j]);
      cells.fetch(voxels[j]);
    }
    for (int64_t j = 0; j < count; ++j) {
      const int64_t i = base + j;
      R products[8] = {};
      for (int k = 0; k < 8; ++k)
        if (voxels[j][k] >= 0)
          products[k] = dot(cells.values(voxels[j][k], space.data()), grad + i * channels, channels);
      const Place<T> place(shape, points, tangent, i);
      for (int axis = 0; axis < 3; ++axis) {
        R w[8], sum = 0;
        place.cell.slopes(axis, place.tangent, w);
        for (int k = 0; k < 8; ++k) sum += w[k] * products[k];
        out[3 * i + axis] = narrow<T>(sum * place.speed[axis]);
      }
    }
  }
}

// The voxel of the lowest corner of each point, extrapolated if it is outside of the grid.
template <class T>
POINTGRAD_CLONES void find_lowest(int64_t* lowest, const Shape& shape, const T* points, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const Place<T> place(shape, points, nullptr, i);
    lowest[i] = (place.lowest[2] * shape.sizes[1] + place.lowest[1]) * shape.sizes[0] + place.lowest[0];
  }
}

// Adds the features of the points of one cloud to its voxels [v0, v1), in the order of the points. A voxel belongs to
// one task, so the result does not depend on the number of threads.
template <class T>
POINTGRAD_CLONES void add_points(Cells<wide<T>> total, const T* __restrict features, const int64_t* lowest,
                                 const Shape& shape, const T* points, const T* tangent, int64_t num_points,
                                 int64_t v0, int64_t v1) {
  using R = wide<T>;
  const int64_t channels = total.channels;
  const int64_t reach = (shape.sizes[1] + 1) * shape.sizes[0] + 1;  // from the lowest corner to the highest
  if (total.in_rows) {
    std::fill(total.row(v0), total.row(v1), R(0));
  } else {
    for (int64_t c = 0; c < channels; ++c) std::fill_n(total.data + c * total.voxels + v0, v1 - v0, R(0));
  }
  Piece<R> piece;
  int64_t own[kPiece];
  for (int64_t next = 0; next < num_points;) {
    int64_t count = 0;
    for (; next < num_points && count < kPiece; ++next) {
      own[count] = next;
      count += lowest[next] < v1 && lowest[next] + reach >= v0;
    }
    for (int64_t j = 0; j < count; ++j) {
      const Place<T> place(shape, points, tangent, own[j]);
      int64_t* voxels = piece.voxels[j];
      place.voxels(shape, voxels);
      for (int k = 0; k < 8; ++k)
        if (voxels[k] < v0 || voxels[k] >= v1) voxels[k] = -1;
      place.cell.weights(place.tangent, piece.weights[j]);
      total.fetch(voxels);
      prefetch(features + own[j] * channels, channels * sizeof(T));
    }
    for (int64_t j = 0; j < count; ++j) {
      const T* from = features + own[j] * channels;
      for (int k = 0; k < 8; ++k) {
        const int64_t voxel = piece.voxels[j][k];
        const R w = piece.weights[j][k];
        if (voxel < 0) continue;
        if (total.in_rows) {
          R* __restrict to = total.row(voxel);
          for (int64_t c = 0; c < channels; ++c) to[c] += w * widen(from[c]);
        } else {
          for (int64_t c = 0; c < channels; ++c) total.data[c * total.voxels + voxel] += w * widen(from[c]);
        }
      }
    }
  }
}

// Tiles for transposing. They have few channels, because values of the same voxel may share a cache set.
template <class Body> POINTGRAD_INLINE void for_tiles(int64_t channels, int64_t v0, int64_t v1, const Body& body) {
  constexpr int64_t kVoxels = 64, kChannels = 8;
  for (int64_t v = v0; v < v1; v += kVoxels)
    for (int64_t c = 0; c < channels; c += kChannels)
      body(v, std::min(v1, v + kVoxels), c, std::min(channels, c + kChannels));
}

// Transposes voxels [v0, v1) of a (C, V) grid into rows (V, C).
template <class T>
POINTGRAD_CLONES void into_rows(T* __restrict out, const T* __restrict in, int64_t voxels, int64_t channels,
                                int64_t v0, int64_t v1) {
  for_tiles(channels, v0, v1, [&](int64_t va, int64_t vb, int64_t ca, int64_t cb) {
    for (int64_t v = va; v < vb; ++v)
      for (int64_t c = ca; c < cb; ++c) out[v * channels + c] = in[c * voxels + v];
  });
}

// The inverse of into_rows, which also rounds to T.
template <class T>
POINTGRAD_CLONES void out_of_rows(T* __restrict out, const wide<T>* __restrict in, int64_t voxels, int64_t channels,
                                  int64_t v0, int64_t v1) {
  for_tiles(channels, v0, v1, [&](int64_t va, int64_t vb, int64_t ca, int64_t cb) {
    for (int64_t c = ca; c < cb; ++c)
      for (int64_t v = va; v < vb; ++v) out[c * voxels + v] = narrow<T>(in[v * channels + c]);
  });
}

int64_t grain(int64_t channels) { return std::max<int64_t>(1, kValuesPerTask / (8 * std::max<int64_t>(channels, 1))); }

// Calls body(cloud, begin, end) on pieces of each cloud's points.
template <class Body>
void for_points(int64_t batch, int64_t count, int64_t channels, int threads, const Body& body) {
  parallel_for(batch * count, grain(channels), threads, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t cloud = begin / count, stop = std::min(end, (cloud + 1) * count);
      body(cloud, begin - cloud * count, stop - cloud * count);
      begin = stop;
    }
  });
}

template <class T> const T* cloud_at(Input tensor, int64_t offset) {
  return tensor ? tensor.as<T>() + offset : nullptr;
}

void grid_sample(Output out, Input cells, bool in_rows, Input points, Input tangent, DType dtype, int64_t batch,
                 int64_t count, int64_t channels, int64_t depth, int64_t height, int64_t width, int padding,
                 bool align_corners, Threads threads) {
  nb::gil_scoped_release release;
  const Shape shape{{width, height, depth}, padding, align_corners};
  const int64_t voxels = shape.voxels();
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for_points(batch, count, channels, threads, [&](int64_t b, int64_t begin, int64_t end) {
      sample<T>(out.as<T>() + b * count * channels,
                {cells.as<T>() + b * voxels * channels, voxels, channels, in_rows}, shape,
                cloud_at<T>(points, b * count * 3), cloud_at<T>(tangent, b * count * 3), begin, end);
    });
  });
}

void grid_slope(Output out, Input grad, Input cells, bool in_rows, Input points, Input tangent, DType dtype,
                int64_t batch, int64_t count, int64_t channels, int64_t depth, int64_t height, int64_t width,
                int padding, bool align_corners, Threads threads) {
  nb::gil_scoped_release release;
  const Shape shape{{width, height, depth}, padding, align_corners};
  const int64_t voxels = shape.voxels();
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for_points(batch, count, channels, threads, [&](int64_t b, int64_t begin, int64_t end) {
      slope<T>(out.as<T>() + b * count * 3, grad.as<T>() + b * count * channels,
               {cells.as<T>() + b * voxels * channels, voxels, channels, in_rows}, shape,
               cloud_at<T>(points, b * count * 3), cloud_at<T>(tangent, b * count * 3), begin, end);
    });
  });
}

void grid_splat(Output total, Input features, bool in_rows, Input points, Input tangent, DType dtype, int64_t batch,
                int64_t count, int64_t channels, int64_t depth, int64_t height, int64_t width, int padding,
                bool align_corners, Threads threads) {
  nb::gil_scoped_release release;
  const Shape shape{{width, height, depth}, padding, align_corners};
  const int64_t voxels = shape.voxels();
  const bool small = batch * (8 * count + voxels) * channels < 2 * kValuesPerTask;
  const int64_t parts = small || batch >= threads ? 1 : std::min<int64_t>(threads, voxels);
  std::vector<int64_t> lowest(batch * count);
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for_points(batch, count, 1, threads, [&](int64_t b, int64_t begin, int64_t end) {
      find_lowest<T>(lowest.data() + b * count, shape, cloud_at<T>(points, b * count * 3), begin, end);
    });
    run_tasks(batch * parts, small ? 1 : threads, [&](int64_t task) {
      const int64_t b = task / parts, part = task % parts;
      add_points<T>({total.as<wide<T>>() + b * voxels * channels, voxels, channels, in_rows},
                    features.as<T>() + b * count * channels, lowest.data() + b * count, shape,
                    cloud_at<T>(points, b * count * 3), cloud_at<T>(tangent, b * count * 3), count,
                    voxels * part / parts, voxels * (part + 1) / parts);
    });
  });
}

void grid_into_rows(Output out, Input source, DType dtype, int64_t batch, int64_t voxels, int64_t channels,
                    Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t b = 0; b < batch; ++b)
      parallel_for(voxels, grain(channels), threads, [&](int64_t v0, int64_t v1) {
        into_rows<T>(out.as<T>() + b * voxels * channels, source.as<T>() + b * voxels * channels, voxels, channels, v0,
                     v1);
      });
  });
}

void grid_out_of_rows(Output out, Input source, DType dtype, int64_t batch, int64_t voxels, int64_t channels,
                      Threads threads) {
  nb::gil_scoped_release release;
  with_float_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t b = 0; b < batch; ++b)
      parallel_for(voxels, grain(channels), threads, [&](int64_t v0, int64_t v1) {
        out_of_rows<T>(out.as<T>() + b * voxels * channels, source.as<wide<T>>() + b * voxels * channels, voxels,
                       channels, v0, v1);
      });
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("grid_sample", &grid_sample, nb::kw_only(), "out"_a, "cells"_a, "in_rows"_a, "points"_a,
             "tangent"_a.none(), "dtype"_a, "batch"_a, "count"_a, "channels"_a, "depth"_a, "height"_a, "width"_a,
             "padding"_a, "align_corners"_a, kThreads);
  module.def("grid_slope", &grid_slope, nb::kw_only(), "out"_a, "grad"_a, "cells"_a, "in_rows"_a, "points"_a,
             "tangent"_a.none(), "dtype"_a, "batch"_a, "count"_a, "channels"_a, "depth"_a, "height"_a, "width"_a,
             "padding"_a, "align_corners"_a, kThreads);
  module.def("grid_splat", &grid_splat, nb::kw_only(), "total"_a, "features"_a, "in_rows"_a, "points"_a,
             "tangent"_a.none(), "dtype"_a, "batch"_a, "count"_a, "channels"_a, "depth"_a, "height"_a, "width"_a,
             "padding"_a, "align_corners"_a, kThreads);
  module.def("grid_into_rows", &grid_into_rows, nb::kw_only(), "out"_a, "source"_a, "dtype"_a, "batch"_a, "voxels"_a,
             "channels"_a, kThreads);
  module.def("grid_out_of_rows", &grid_out_of_rows, nb::kw_only(), "out"_a, "source"_a, "dtype"_a, "batch"_a,
             "voxels"_a, "channels"_a, kThreads);
}
