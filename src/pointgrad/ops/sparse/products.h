// Products of rows with matrices that are held in vector registers, for AVX-512, AVX2 and the baseline.
//
// Six rows by up to four vectors of columns are accumulated in registers (two vectors where there are 16 registers).
// The number of registers decides the shape of the loop, so it is written once for each size of vectors instead of with
// POINTGRAD_CLONES, and `with_vectors` picks one.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "numbers.h"

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(POINTGRAD_NO_CLONES)
#define POINTGRAD_LEVELS
#define POINTGRAD_TARGET_V4 __attribute__((target("arch=x86-64-v4")))
#define POINTGRAD_TARGET_V3 __attribute__((target("arch=x86-64-v3")))
#endif

namespace pointgrad {
namespace sparse {

constexpr int kRows = 6;

// The size of vectors on this processor.
inline int vector_bytes() {
#if defined(POINTGRAD_LEVELS)
  static const int bytes = __builtin_cpu_supports("x86-64-v4") ? 64 : __builtin_cpu_supports("x86-64-v3") ? 32 : 16;
  return bytes;
#else
  return 16;
#endif
}

template <class W> int vector_lanes() { return vector_bytes() / static_cast<int>(sizeof(W)); }
// The most columns of a product.
template <class W> int panel_width() { return vector_lanes<W>() * (vector_bytes() == 64 ? 4 : 2); }

template <class W, int kBytes> struct Vectors {
  static constexpr int kLanes = kBytes / sizeof(W);
  typedef W type __attribute__((vector_size(kBytes)));
  typedef W unaligned __attribute__((vector_size(kBytes), aligned(sizeof(W)), may_alias));
  static POINTGRAD_INLINE void load(type& to, const W* from) { to = *reinterpret_cast<const unaligned*>(from); }
  static POINTGRAD_INLINE void store(W* to, const type& value) { *reinterpret_cast<unaligned*>(to) = value; }
};

// An entry of a kernel map: a row of the sums and a row of the features.
struct Pair {
  int32_t out, in;
};

// sums[out] += features[in] @ matrix, for each pair. The number of pairs is a multiple of kRows.
template <class T> struct RowProducts {
  wide<T>* sums;  // rows of `stride` values
  int64_t stride;
  const T* features;  // rows of `channels` values
  int64_t channels;
  const Pair* pairs;
  int64_t count;
  const wide<T>* matrix;  // (inputs, width)
  int64_t inputs;
};

constexpr int64_t kInputs = 64;  // the most inputs of a product

template <int kBytes, int kVectors, class T> POINTGRAD_INLINE void multiply(const RowProducts<T>& p) {
  using W = wide<T>;
  using V = Vectors<W, kBytes>;
  constexpr int kWidth = kVectors * V::kLanes;
  [[maybe_unused]] W wider[kRows][kInputs];
  const int64_t inputs = p.inputs;
  for (int64_t i = 0; i < p.count; i += kRows) {
    const W* rows[kRows];
    W* out[kRows];
    for (int r = 0; r < kRows; ++r) {
      const T* from = p.features + p.pairs[i + r].in * p.channels;
      out[r] = p.sums + p.pairs[i + r].out * p.stride;
      if constexpr (std::is_same_v<T, W>) {
        rows[r] = from;
      } else {
        for (int64_t c = 0; c < inputs; ++c) wider[r][c] = widen(from[c]);
        rows[r] = wider[r];
      }
    }
    if (i + kRows < p.count)
      for (int r = 0; r < kRows; ++r) {
        const char* next = reinterpret_cast<const char*>(p.features + p.pairs[i + kRows + r].in * p.channels);
        for (int64_t at = 0; at < inputs * static_cast<int64_t>(sizeof(T)); at += 64) __builtin_prefetch(next + at);
      }
    typename V::type sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) V::load(sum[r][v], out[r] + v * V::kLanes);
    const W* line = p.matrix;
    for (int64_t c = 0; c < inputs; ++c, line += kWidth) {
      typename V::type column[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) V::load(column[v], line + v * V::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const W value = rows[r][c];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) sum[r][v] += value * column[v];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) V::store(out[r] + v * V::kLanes, sum[r][v]);
  }
}

// A value of a row of features that is not zero, and its channel, counted from the first input of a matrix.
template <class W> struct Entry {
  using Index = std::conditional_t<sizeof(W) == 8, int64_t, int32_t>;
  W value;
  Index channel;
};

// The bits of a value without its sign. They order numbers by magnitude, and infinity and NaN come last.
POINTGRAD_INLINE uint32_t magnitude(float value) { return bit_cast<uint32_t>(value) & 0x7fffffffu; }
POINTGRAD_INLINE uint64_t magnitude(double value) { return bit_cast<uint64_t>(value) & 0x7fffffffffffffffu; }

// sums[out] += entries[in] @ matrix, for each pair.
template <class W> struct EntryProducts {
  W* sums;                  // rows of `width` values
  const Entry<W>* entries;  // rows of `channels` entries, of which counts[in * blocks] are in use
  int64_t channels;
  const uint8_t* counts;
  int64_t blocks;
  const Pair* pairs;
  int64_t count;
  const W* matrix;  // (inputs, width)
};

constexpr int kEntryVectors = 8;  // the most vectors of columns of EntryProducts

template <int kBytes, int kVectors, class W> POINTGRAD_INLINE void multiply(const EntryProducts<W>& p) {
  using V = Vectors<W, kBytes>;
  constexpr int kWidth = kVectors * V::kLanes;
  for (int64_t i = 0; i < p.count; ++i) {
    const Pair pair = p.pairs[i];
    const Entry<W>* entry = p.entries + pair.in * p.channels;
    const Entry<W>* const end = entry + p.counts[pair.in * p.blocks];
    if (i + kRows < p.count) {
      const int64_t next = p.pairs[i + kRows].in;
      const char* line = reinterpret_cast<const char*>(p.entries + next * p.channels);
      for (int64_t at = 0; at < 256; at += 64) __builtin_prefetch(line + at);
    }
    W* out = p.sums + pair.out * kWidth;
    typename V::type sum[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) V::load(sum[v], out + v * V::kLanes);
    for (; entry != end; ++entry) {
      const W value = entry->value;
      const W* line = p.matrix + entry->channel * kWidth;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        typename V::type column;
        V::load(column, line + v * V::kLanes);
        sum[v] += value * column;
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) V::store(out + v * V::kLanes, sum[v]);
  }
}

// sums (inputs, width) += left (count, inputs).T @ right (count, width). The number of inputs is even.
template <class W> struct OuterProducts {
  W* sums;
  const W* left;
  const W* right;
  int64_t count, inputs;
};

// The sums of kInputs inputs from c.
template <int kBytes, int kVectors, int kInputs, class W>
POINTGRAD_INLINE void multiply_some(const OuterProducts<W>& p, int64_t c) {
  using V = Vectors<W, kBytes>;
  constexpr int kWidth = kVectors * V::kLanes;
  W* out = p.sums + c * kWidth;
  typename V::type sum[kInputs][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kInputs; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) V::load(sum[r][v], out + r * kWidth + v * V::kLanes);
  const W* left = p.left + c;
  const W* right = p.right;
  for (int64_t i = 0; i < p.count; ++i, left += p.inputs, right += kWidth) {
    typename V::type column[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) V::load(column[v], right + v * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kInputs; ++r) {
      const W value = left[r];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] += value * column[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kInputs; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) V::store(out + r * kWidth + v * V::kLanes, sum[r][v]);
}

template <int kBytes, int kVectors, class W> POINTGRAD_INLINE void multiply(const OuterProducts<W>& p) {
  int64_t c = 0;
  for (; c + kRows <= p.inputs; c += kRows) multiply_some<kBytes, kVectors, kRows>(p, c);
  if (p.inputs - c == 4) multiply_some<kBytes, kVectors, 4>(p, c);
  if (p.inputs - c == 2) multiply_some<kBytes, kVectors, 2>(p, c);
}

template <int kBytes, class Products> POINTGRAD_INLINE void multiply_by(const Products& products, int vectors) {
  if (vectors == 1) return multiply<kBytes, 1>(products);
  if (kBytes < 64 || vectors == 2) return multiply<kBytes, 2>(products);
  if constexpr (kBytes == 64) {
    if (vectors == 3) return multiply<kBytes, 3>(products);
    return multiply<kBytes, 4>(products);
  }
}

template <int kBytes, class W> POINTGRAD_INLINE void multiply_by(const EntryProducts<W>& products, int vectors) {
  switch (vectors) {
    case 1: return multiply<kBytes, 1>(products);
    case 2: return multiply<kBytes, 2>(products);
    case 3: return multiply<kBytes, 3>(products);
    case 4: return multiply<kBytes, 4>(products);
    case 5: return multiply<kBytes, 5>(products);
    case 6: return multiply<kBytes, 6>(products);
    case 7: return multiply<kBytes, 7>(products);
    default: return multiply<kBytes, 8>(products);
  }
}

template <class Products> void multiply_base(const Products& products, int vectors) {
  multiply_by<16>(products, vectors);
}
#if defined(POINTGRAD_LEVELS)
template <class Products> POINTGRAD_TARGET_V3 void multiply_v3(const Products& products, int vectors) {
  multiply_by<32>(products, vectors);
}
template <class Products> POINTGRAD_TARGET_V4 void multiply_v4(const Products& products, int vectors) {
  multiply_by<64>(products, vectors);
}
#endif

// `vectors` is the width of the matrix in vectors.
template <class Products> void multiply(const Products& products, int vectors) {
#if defined(POINTGRAD_LEVELS)
  if (vector_bytes() == 64) return multiply_v4(products, vectors);
  if (vector_bytes() == 32) return multiply_v3(products, vectors);
#endif
  multiply_base(products, vectors);
}

}  // namespace sparse
}  // namespace pointgrad
