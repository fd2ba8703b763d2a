// Work sharing for the CPU kernels. Plain threads instead of OpenMP, because a second OpenMP runtime beside torch's own
// does not survive fork(), and compilers on macOS come without OpenMP.
#pragma once
#include <cstdint>
#include <functional>

namespace pointgrad {

// Calls task(i) once for each i in [0, count), on at most `threads` threads including the caller's. Tasks are assigned
// one by one, which balances uneven tasks. A task must not depend on which thread runs it. The first exception of a
// task is rethrown.
void run_tasks(int64_t count, int threads, const std::function<void(int64_t)>& task);

// Calls body(begin, end) on pieces of [0, n) of at least `grain` items.
template <class Body>
void parallel_for(int64_t n, int64_t grain, int threads, Body&& body) {
#if defined(__SANITIZE_THREAD__)
  grain = 1;  // divide even small work, so that small tests detect races
#endif
  int64_t pieces = n / (grain > 0 ? grain : 1);
  if (pieces > threads) pieces = threads;
  if (pieces <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  run_tasks(pieces, threads, [&](int64_t i) { body(n * i / pieces, n * (i + 1) / pieces); });
}

}  // namespace pointgrad
