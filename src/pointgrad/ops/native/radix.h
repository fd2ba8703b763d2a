// A radix sort that several threads share.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "threads.h"

namespace pointgrad {

inline int bit_width(uint64_t value) { return value == 0 ? 0 : 64 - __builtin_clzll(value); }

// Calls body(part, begin, end) on equal parts of [0, count).
template <class Body> void in_parts(int64_t count, int64_t parts, int threads, Body&& body) {
  run_tasks(parts, threads, [&](int64_t part) { body(part, count * part / parts, count * (part + 1) / parts); });
}

// A stable sort by the bits from `low` to `high`. Returns the array that holds the result, `items` or `other`.
inline uint64_t* radix_sort(uint64_t* items, uint64_t* other, int64_t count, int low, int high, int64_t parts,
                            int threads) {
  constexpr int kDigit = 11;
  constexpr int64_t kDigits = 1 << kDigit;
  std::vector<int64_t> next(parts * kDigits);
  for (int shift = low; shift < high; shift += kDigit) {
    std::fill(next.begin(), next.end(), 0);
    const auto digit = [&](uint64_t item) { return item >> shift & (kDigits - 1); };
    in_parts(count, parts, threads, [&](int64_t part, int64_t begin, int64_t end) {
      int64_t* mine = next.data() + part * kDigits;
      for (int64_t i = begin; i < end; ++i) ++mine[digit(items[i])];
    });
    int64_t sum = 0;
    for (int64_t d = 0; d < kDigits; ++d)
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t own = next[part * kDigits + d];
        next[part * kDigits + d] = sum;
        sum += own;
      }
    in_parts(count, parts, threads, [&](int64_t part, int64_t begin, int64_t end) {
      int64_t* mine = next.data() + part * kDigits;
      for (int64_t i = begin; i < end; ++i) other[mine[digit(items[i])]++] = items[i];
    });
    std::swap(items, other);
  }
  return items;
}

}  // namespace pointgrad
