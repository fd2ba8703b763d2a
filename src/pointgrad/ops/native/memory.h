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

// Prefetches into the second-level cache, because many rows are in flight at a time.
inline void prefetch(const void* data, size_t bytes) {
  const char* line = static_cast<const char*>(data);
  for (size_t at = 0; at < bytes && at < 512; at += 64) __builtin_prefetch(line + at, 0, 2);
}

// Stores that bypass the cache do not read the lines that they overwrite: for outputs larger than the cache.
// Only for 16-byte aligned rows, on x86.
inline bool can_copy_past_cache(const void* to, size_t bytes) {
#if defined(__SSE2__)
  return reinterpret_cast<uintptr_t>(to) % 16 == 0 && bytes % 64 == 0;
#else
  (void)to;
  (void)bytes;
  return false;
#endif
}

// Makes copies past the cache visible to other threads.
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
