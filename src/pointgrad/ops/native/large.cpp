// Memory for large outputs, used again instead of being returned to the system. A fresh large tensor is
// mapped and zeroed page by page as it is first written, which takes longer than writing it. Blocks wait
// for their next use marked as free: the system takes their pages back whenever it runs short.
//
// AddressSanitizer sees the ends of torch's tensors, not of these.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
#include <nanobind/ndarray.h>
#include <pthread.h>
#include <sys/mman.h>

#include <memory>
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

struct Waiting {
  std::mutex lock;
  std::vector<Block> blocks;  // the longest waiting first
  Waiting() { blocks.reserve(kMostWaiting + 1); }  // giving back must not fail
};

// Never destroyed: tensors may be let go of after static destruction.
Waiting& waiting = *new Waiting;

// Without a GIL, a fork may come while another thread holds the lock: it would stay locked in the child for ever.
[[maybe_unused]] const int at_fork = pthread_atfork([] { waiting.lock.lock(); }, [] { waiting.lock.unlock(); },
                                                    [] { waiting.lock.unlock(); });

void* map(size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped != MAP_FAILED) return mapped;
  {
    // What waits may be what is missing.
    std::lock_guard<std::mutex> hold(waiting.lock);
    for (const Block& block : waiting.blocks) munmap(block.data, block.bytes);
    waiting.blocks.clear();
  }
  mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  return mapped;
}

Block take(size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  {
    std::lock_guard<std::mutex> hold(waiting.lock);
    std::vector<Block>& blocks = waiting.blocks;
    for (size_t i = blocks.size(); i-- > 0;) {
      const Block block = blocks[i];
      if (block.bytes < bytes || block.bytes > bytes + bytes / 4) continue;
      blocks.erase(blocks.begin() + i);
      return block;
    }
  }
  char* begin = static_cast<char*>(map(bytes + kPage));
  // Cut to a multiple of the large page, so that all of it can be in large pages.
  char* data = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage);
  if (data > begin) munmap(begin, data - begin);
  munmap(data + bytes, begin + kPage - data);
  madvise(data, bytes, MADV_HUGEPAGE);
  return {data, bytes};
}

void give_back(Block block) {
  madvise(block.data, block.bytes, MADV_FREE);
  std::lock_guard<std::mutex> hold(waiting.lock);
  std::vector<Block>& blocks = waiting.blocks;
  blocks.push_back(block);
  if (blocks.size() > kMostWaiting) {
    munmap(blocks.front().data, blocks.front().bytes);
    blocks.erase(blocks.begin());
  }
}

// A torch tensor of bytes whose memory comes back here when torch lets go of it.
nb::ndarray<nb::pytorch, uint8_t, nb::ndim<1>> large_buffer(size_t bytes) {
  auto block = std::make_unique<Block>(Block{nullptr, 0});
  *block = take(bytes);
  char* data = block->data;
  nb::capsule owner(block.release(), [](void* pointer) noexcept {
    Block* mine = static_cast<Block*>(pointer);
    give_back(*mine);
    delete mine;
  });
  return {data, {bytes}, owner};
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) { module.def("large_buffer", &pointgrad::large_buffer); }
#endif
