// Hand-written AVX-512 for what compilers do not generate: counting or compressing the lanes that pass a test in one
// instruction. Functions marked POINTGRAD_V4 may only be called where has_v4() is true.
#pragma once
#include <cstdint>

#include "numbers.h"

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define POINTGRAD_V4 __attribute__((target("arch=x86-64-v4")))
#define POINTGRAD_V4_INLINE POINTGRAD_V4 POINTGRAD_INLINE
#endif

namespace pointgrad {
namespace neighbors {

#if defined(POINTGRAD_V4)
inline bool has_v4() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  return has;
}

struct Floats {
  using Vector = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  POINTGRAD_V4_INLINE static Vector load(const float* p) { return _mm512_load_ps(p); }
  POINTGRAD_V4_INLINE static Vector load_any(const float* p) { return _mm512_loadu_ps(p); }
  POINTGRAD_V4_INLINE static Vector all(float v) { return _mm512_set1_ps(v); }
  POINTGRAD_V4_INLINE static Mask less(Mask mask, Vector a, Vector b) {
    return _mm512_mask_cmp_ps_mask(mask, a, b, _CMP_LT_OQ);
  }
  POINTGRAD_V4_INLINE static Mask at_most(Mask mask, Vector a, Vector b) {
    return _mm512_mask_cmp_ps_mask(mask, a, b, _CMP_LE_OQ);
  }
  POINTGRAD_V4_INLINE static Mask at_most(Mask mask, __m512i a, int32_t b) {
    return _mm512_mask_cmple_epi32_mask(mask, a, _mm512_set1_epi32(b));
  }
  // Writes the lanes of the mask; the lanes after them get unspecified values.
  POINTGRAD_V4_INLINE static void keep(float* to, Mask mask, Vector v) {
    _mm512_storeu_ps(to, _mm512_maskz_compress_ps(mask, v));
  }
  POINTGRAD_V4_INLINE static void keep(int32_t* to, Mask mask, __m512i v) {
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask, v));
  }
};
struct Doubles {
  using Vector = __m512d;
  using Mask = __mmask8;
  static constexpr int kLanes = 8;
  POINTGRAD_V4_INLINE static Vector load(const double* p) { return _mm512_load_pd(p); }
  POINTGRAD_V4_INLINE static Vector load_any(const double* p) { return _mm512_loadu_pd(p); }
  POINTGRAD_V4_INLINE static Vector all(double v) { return _mm512_set1_pd(v); }
  POINTGRAD_V4_INLINE static Mask less(Mask mask, Vector a, Vector b) {
    return _mm512_mask_cmp_pd_mask(mask, a, b, _CMP_LT_OQ);
  }
  POINTGRAD_V4_INLINE static Mask at_most(Mask mask, Vector a, Vector b) {
    return _mm512_mask_cmp_pd_mask(mask, a, b, _CMP_LE_OQ);
  }
  POINTGRAD_V4_INLINE static Mask at_most(Mask mask, __m512i a, int64_t b) {
    return _mm512_mask_cmple_epi64_mask(mask, a, _mm512_set1_epi64(b));
  }
  POINTGRAD_V4_INLINE static void keep(double* to, Mask mask, Vector v) {
    _mm512_storeu_pd(to, _mm512_maskz_compress_pd(mask, v));
  }
  POINTGRAD_V4_INLINE static void keep(int64_t* to, Mask mask, __m512i v) {
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi64(mask, v));
  }
};
template <class T> struct VectorsOf { using type = Floats; };
template <> struct VectorsOf<double> { using type = Doubles; };
#else
inline bool has_v4() { return false; }
#endif

}  // namespace neighbors
}  // namespace pointgrad
