// Stateless random numbers: a hash of a seed and of indices, the same as in ops/mixing.py.
#pragma once
#include <cstdint>

#include "numbers.h"

namespace pointgrad {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;  // 2^64 divided by the golden ratio

// The finalizer of splitmix64.
POINTGRAD_INLINE uint64_t mix(uint64_t key) {
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

}  // namespace pointgrad
