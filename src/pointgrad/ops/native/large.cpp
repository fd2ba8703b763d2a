// Memory for large outputs, used again instead of being returned to the system. A fresh large tensor is
// mapped and zeroed page by page as it is first written, which takes longer than writing it. Blocks wait
// for their next use marked as free: the system takes their pages back whenever it runs short.
#if defined(__linux__)
#include <nanobind/ndarray.h>
#include <sys/mman.h>

#include <mutex>
#include <new>
#include <vector>

#include "module.h"

namespace pointgrad {
namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kMostWaiting = 8;

struct Block {
  char* data;
  size_t bytes;
};

std::mutex lock;
std::vector<Block> waiting;  // the longest waiting first

Block take(size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  {
    std::lock_guard<std::mutex> hold(lock);
    for (size_t i = waiting.size(); i-- > 0;) {
      const Block block = waiting[i];
      if (block.bytes < bytes || block.bytes > bytes + bytes / 4) continue;
      waiting.erase(waiting.begin() + i);
      return block;
    }
  }
  void* mapped = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  // Cut to a multiple of the large page, so that all of it can be in large pages.
  char* begin = static_cast<char*>(mapped);
  char* data = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage);
  if (data > begin) munmap(begin, data - begin);
  munmap(data + bytes, begin + kPage - data);
  madvise(data, bytes, MADV_HUGEPAGE);
  return {data, bytes};
}

void give_back(Block block) {
  madvise(block.data, block.bytes, MADV_FREE);
  std::lock_guard<std::mutex> hold(lock);
  waiting.push_back(block);
  if (waiting.size() > kMostWaiting) {
    munmap(waiting.front().data, waiting.front().bytes);
    waiting.erase(waiting.begin());
  }
}

// A torch tensor of bytes whose memory comes back here when torch lets go of it.
nb::ndarray<nb::pytorch, uint8_t, nb::ndim<1>> large_buffer(size_t bytes) {
  Block* block = new Block(take(bytes));
  nb::capsule owner(block, [](void* pointer) noexcept {
    Block* mine = static_cast<Block*>(pointer);
    give_back(*mine);
    delete mine;
  });
  return {block->data, {bytes}, owner};
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) { module.def("large_buffer", &pointgrad::large_buffer); }
#endif
