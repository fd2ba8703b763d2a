// The smallest and largest entry of an index. It runs on this library's thread pool: torch's threads would still spin,
// waiting for more work, while the kernel after this check needs their cores.
#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "module.h"
#include "numbers.h"
#include "threads.h"

namespace pointgrad {
namespace {

POINTGRAD_CLONES void widen_bounds(const int64_t* values, int64_t begin, int64_t end, int64_t* low, int64_t* high) {
  int64_t smallest = *low, largest = *high;
  for (int64_t i = begin; i < end; ++i) {
    smallest = std::min(smallest, values[i]);
    largest = std::max(largest, values[i]);
  }
  *low = smallest;
  *high = largest;
}

std::pair<int64_t, int64_t> bounds(const int64_t* values, int64_t count, int threads) {
  int64_t low = std::numeric_limits<int64_t>::max(), high = std::numeric_limits<int64_t>::min();
  {
    nb::gil_scoped_release release;
    std::mutex lock;
    parallel_for(count, 1 << 16, threads, [&](int64_t begin, int64_t end) {
      int64_t smallest = std::numeric_limits<int64_t>::max(), largest = std::numeric_limits<int64_t>::min();
      widen_bounds(values, begin, end, &smallest, &largest);
      std::lock_guard<std::mutex> hold(lock);
      low = std::min(low, smallest);
      high = std::max(high, largest);
    });
  }
  return {low, high};
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  const auto bounds_as_tuple = [](In<int64_t> index, int64_t count, Threads threads) {
    const auto [low, high] = bounds(index, count, threads);
    return nb::make_tuple(low, high);
  };
  module.def("bounds", bounds_as_tuple, nb::kw_only(), "index"_a, "count"_a, kThreads);
}
