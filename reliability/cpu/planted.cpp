// Defects that each sanitizer must report, to prove that it works. Called through ctypes, on torch's memory and in
// Python's threads, like the kernels.
#include <cstdint>
#include <limits>
#include <thread>

extern "C" {

// AddressSanitizer: `values` has `count` floats.
float read_past_the_end(const float* values, int64_t count) { return values[count]; }

float* address_of_a_local() {
  float local = 1.0f;
  float* volatile escaped = &local;
  return escaped;
}
float read_after_return() { return *address_of_a_local(); }

// UndefinedBehaviorSanitizer.
int64_t add_to_the_largest(int64_t more) { return std::numeric_limits<int64_t>::max() + more; }
int32_t cast_to_int(double value) { return static_cast<int32_t>(value); }
int read_past_an_array(int at) {
  static int array[4] = {1, 2, 3, 4};
  return array[at];
}
int shift(int by) { return 1 << by; }

// ThreadSanitizer.
void add_without_a_lock(float* total, int64_t times) {
  for (int64_t i = 0; i < times; ++i) *total += 1.0f;
}
void add_in_two_threads(float* total, int64_t times) {
  std::thread other(add_without_a_lock, total, times);
  add_without_a_lock(total, times);
  other.join();
}
}
