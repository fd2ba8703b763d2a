// Moving rows of large tensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace pointgrad {

constexpr int64_t kLargerThanCache = int64_t{64} << 20;

// Into the second-level cache: rows are asked for many at a time.
inline void prefetch(const void* data, size_t bytes) {
  const char* line = static_cast<const char*>(data);
  for (size_t at = 0; at < bytes && at < 512; at += 64) __builtin_prefetch(line + at, 0, 2);
}

// Stores that go around the cache spare it a read of what is overwritten anyway: for outputs that would
// not stay in it. Only for 16-byte aligned rows, on x86.
inline bool can_copy_past_cache(uintptr_t to, size_t bytes) {
#if defined(__SSE2__)
  return to % 16 == 0 && bytes % 64 == 0;
#else
  (void)to;
  (void)bytes;
  return false;
#endif
}

// Before others are told that the copies are there.
inline void finish_copies() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

inline void copy_past_cache(void* to, const void* from, size_t bytes) {
#if defined(__SSE2__)
  __m128i* target = static_cast<__m128i*>(to);
  const __m128i* source = static_cast<const __m128i*>(from);
  for (size_t i = 0; i < bytes / 16; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace pointgrad
