// Reused memory for large outputs. A fresh large tensor is mapped and zeroed page by page when it is first written,
// which takes longer than writing it. Idle blocks are marked as free, so the system may reclaim their pages at any time.
//
// Disabled under AddressSanitizer, which detects accesses past the end of torch's tensors but not of these blocks.
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
// Bounds on idle blocks: although the system may reclaim their pages, they count as memory of the process until then.
constexpr size_t kMostIdle = 8;
constexpr size_t kMostIdleBytes = size_t{1} << 30;

struct Block {
  char* data;
  size_t bytes;
};

struct Idle {
  std::mutex lock;
  std::vector<Block> blocks;  // the longest idle first
  size_t bytes = 0;           // total size of all blocks
  Idle() { blocks.reserve(kMostIdle + 1); }  // so that give_back cannot fail
};

// Never destroyed: tensors may be freed after static destruction.
Idle& idle = *new Idle;

// Without a GIL, a fork may happen while a second thread holds the lock, which would stay locked in the child.
[[maybe_unused]] const int at_fork = pthread_atfork([] { idle.lock.lock(); }, [] { idle.lock.unlock(); },
                                                    [] { idle.lock.unlock(); });

void release_buffers() {
  std::lock_guard<std::mutex> hold(idle.lock);
  for (const Block& block : idle.blocks) munmap(block.data, block.bytes);
  idle.blocks.clear();
  idle.bytes = 0;
}

void* map(size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped != MAP_FAILED) return mapped;
  release_buffers();  // the idle blocks may hold the memory that is missing
  mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  return mapped;
}

Block take(size_t bytes) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  {
    std::lock_guard<std::mutex> hold(idle.lock);
    std::vector<Block>& blocks = idle.blocks;
    for (size_t i = blocks.size(); i-- > 0;) {
      const Block block = blocks[i];
      if (block.bytes < bytes || block.bytes > bytes + bytes / 4) continue;
      blocks.erase(blocks.begin() + i);
      idle.bytes -= block.bytes;
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
  std::lock_guard<std::mutex> hold(idle.lock);
  std::vector<Block>& blocks = idle.blocks;
  blocks.push_back(block);
  idle.bytes += block.bytes;
  while (blocks.size() > kMostIdle || idle.bytes > kMostIdleBytes) {
    munmap(blocks.front().data, blocks.front().bytes);
    idle.bytes -= blocks.front().bytes;
    blocks.erase(blocks.begin());
  }
}

// A torch tensor of bytes whose memory returns to the idle blocks when torch frees it.
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

POINTGRAD_KERNELS(module) {
  module.def("large_buffer", &pointgrad::large_buffer);
  module.def("release_buffers", &pointgrad::release_buffers);
}
#endif
