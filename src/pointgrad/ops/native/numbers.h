// Element types of the CPU kernels, and the types in which they are summed.
#pragma once
#include <cstdint>
#include <cstring>
#include <stdexcept>

// POINTGRAD_CLONES compiles a function for AVX-512, AVX2 and the baseline; the loader picks one, so that one build fits
// every x86-64 machine. Put it on plain functions that hold the hot loop. Functions that they call must be
// POINTGRAD_INLINE to be compiled for the same target. A build with a sanitizer has no clones: it would check the same
// source three times.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(POINTGRAD_NO_CLONES)
#define POINTGRAD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define POINTGRAD_CLONES
#endif
#define POINTGRAD_INLINE inline __attribute__((always_inline))

namespace pointgrad {

// The 16-bit types convert by integer arithmetic: it vectorizes on every target and compiler.
struct float16 {
  uint16_t bits;
};

struct bfloat16 {
  uint16_t bits;
};

// The type in which a value is computed: float for the 16-bit types.
template <class T> struct Wide { using type = float; };
template <> struct Wide<double> { using type = double; };
template <> struct Wide<int64_t> { using type = int64_t; };
template <> struct Wide<int32_t> { using type = int32_t; };
template <class T> using wide = typename Wide<T>::type;

template <class To, class From> POINTGRAD_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast changes the type, not the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

POINTGRAD_INLINE float widen(float value) { return value; }
POINTGRAD_INLINE double widen(double value) { return value; }
POINTGRAD_INLINE int64_t widen(int64_t value) { return value; }
POINTGRAD_INLINE int32_t widen(int32_t value) { return value; }
POINTGRAD_INLINE float widen(bfloat16 value) { return bit_cast<float>(uint32_t{value.bits} << 16); }
POINTGRAD_INLINE float widen(float16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t rest = (value.bits & 0x7fffu) << 13;
  const uint32_t normal = rest + (112u << 23);  // the exponent's bias goes from 15 to 127
  const uint32_t denormal = bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(value.bits & 0x3ffu)) * 0x1p-24f);
  uint32_t bits = rest < 0x00800000u ? denormal : normal;
  bits |= rest >= 0x0f800000u ? 0x7f800000u : 0u;  // infinity and NaN
  return bit_cast<float>(bits | sign);
}

// narrow rounds to nearest, ties to even, as torch does.
template <class T> POINTGRAD_INLINE T narrow(wide<T> value) { return value; }
template <> POINTGRAD_INLINE bfloat16 narrow<bfloat16>(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
}
template <> POINTGRAD_INLINE float16 narrow<float16>(float value) {
  const uint32_t sign = (bit_cast<uint32_t>(value) >> 16) & 0x8000u;
  const uint32_t bits = bit_cast<uint32_t>(value) & 0x7fffffffu;
  const uint32_t normal = (bits + 0xfffu + ((bits >> 13) & 1u) - (112u << 23)) >> 13;
  // Below 2^-14, adding 0.5 leaves the rounded half-precision denormal in the low bits.
  const uint32_t denormal = bit_cast<uint32_t>(bit_cast<float>(bits) + 0.5f) - 0x3f000000u;
  uint32_t half = bits < 0x38800000u ? denormal : normal;
  half = bits >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above round to infinity
  half = bits > 0x7f800000u ? 0x7e00u : half;
  return {static_cast<uint16_t>(half | sign)};
}

// Integers wrap around, as torch's do.
POINTGRAD_INLINE float plus(float a, float b) { return a + b; }
POINTGRAD_INLINE double plus(double a, double b) { return a + b; }
POINTGRAD_INLINE int64_t plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
POINTGRAD_INLINE int32_t plus(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

// Calls body(T{}) with the element type of a dtype code (DType in module.h).
template <class Body> void with_float_type(int dtype, Body&& body) {
  switch (dtype) {
    case 0: return body(float{});
    case 1: return body(double{});
    case 2: return body(float16{});
    case 3: return body(bfloat16{});
    default: throw std::invalid_argument("unknown dtype code");
  }
}

// For kernels whose 16-bit inputs were converted to float32.
template <class Body> void with_wide_type(int dtype, Body&& body) {
  switch (dtype) {
    case 0: return body(float{});
    case 1: return body(double{});
    default: throw std::invalid_argument("dtype must be float32 or float64");
  }
}

// The same for operators that also take integers.
template <class Body> void with_number_type(int dtype, Body&& body) {
  switch (dtype) {
    case 4: return body(int64_t{});
    case 5: return body(int32_t{});
    default: return with_float_type(dtype, body);
  }
}

}  // namespace pointgrad
