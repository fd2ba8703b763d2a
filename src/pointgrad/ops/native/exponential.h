// e^x for x <= 0 in arithmetic that vectorizes: e^x = 2^n e^r with |r| <= log(2) / 2. The error is at most two units in
// the last place, for denormal results too. NaN gives NaN.
#pragma once
#include "numbers.h"

namespace pointgrad {

POINTGRAD_INLINE float exp_of_negative(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23; adding it leaves a rounded integer in the low bits
  const float clamped = x < -104.0f ? -104.0f : x;  // below this the result rounds to 0
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;  // log(2) in two parts, the first is exact
  float series = r * (1.0f / 5040) + 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r * r + r + 1.0f;
  // 2^n in two factors, because the result may be denormal, where a single factor would be 0.
  const int32_t power = bit_cast<int32_t>(shifted) - bit_cast<int32_t>(kRound), half = power >> 1;
  return series * bit_cast<float>(static_cast<uint32_t>(half + 127) << 23) *
         bit_cast<float>(static_cast<uint32_t>(power - half + 127) << 23);
}

POINTGRAD_INLINE double exp_of_negative(double x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double clamped = x < -746.0 ? -746.0 : x;
  const double shifted = clamped * 1.4426950408889634 + kRound;
  const double n = shifted - kRound;
  const double r = (clamped - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  double series = r * (1.0 / 6227020800) + 1.0 / 479001600;
  series = series * r + 1.0 / 39916800;
  series = series * r + 1.0 / 3628800;
  series = series * r + 1.0 / 362880;
  series = series * r + 1.0 / 40320;
  series = series * r + 1.0 / 5040;
  series = series * r + 1.0 / 720;
  series = series * r + 1.0 / 120;
  series = series * r + 1.0 / 24;
  series = series * r + 1.0 / 6;
  series = series * r + 0.5;
  series = series * r * r + r + 1.0;
  // Halved in floating point, because AVX2 has no arithmetic shift of 64-bit integers.
  const double halved = n * 0.5 + kRound, rest = n - (halved - kRound) + kRound;
  constexpr uint64_t kBias = 1023 - 0x4338000000000000u;  // the bits of kRound
  return series * bit_cast<double>((bit_cast<uint64_t>(halved) + kBias) << 52) *
         bit_cast<double>((bit_cast<uint64_t>(rest) + kBias) << 52);
}

}  // namespace pointgrad
