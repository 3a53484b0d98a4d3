#include "blocks.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fastagg::memory {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kWorthKeeping = size_t{1} << 16;  // below it the allocator's own lists are as good
constexpr size_t kKeptPerSize = 2;                 // the rest goes back to the operating system
constexpr size_t kAlignment = 64;

struct Free {
  std::mutex mutex;
  std::unordered_map<size_t, std::vector<void*>> blocks;
};

// Never destroyed: vectors may outlive everything else at the end of a process.
Free& free_blocks() {
  static Free* const held = [] {
    auto* made = new Free;
#if defined(__unix__) || defined(__APPLE__)
    // A child must not find the lock held by a thread that it does not have.
    pthread_atfork([] { free_blocks().mutex.lock(); }, [] { free_blocks().mutex.unlock(); },
                   [] { free_blocks().mutex.unlock(); });
#endif
    return made;
  }();
  return *held;
}

std::atomic<int64_t> failing{-1};

#if defined(__linux__)
// Whole pages, of which the first lies where a huge page may begin.
size_t mapped(size_t nbytes) { return (nbytes + kHugePage - 1) / kHugePage * kHugePage; }

void* from_system(size_t nbytes) {
  if (nbytes < kHugePage) {
    void* block = std::aligned_alloc(kAlignment, (nbytes + kAlignment - 1) / kAlignment * kAlignment);
    if (block == nullptr) throw std::bad_alloc();
    return block;
  }
  const size_t length = mapped(nbytes) + kHugePage;
  // Private: memory that forked children share has no huge pages.
  void* all = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) throw std::bad_alloc();
  char* begin = static_cast<char*>(all);
  const size_t ahead = (kHugePage - reinterpret_cast<uintptr_t>(all) % kHugePage) % kHugePage;
  if (ahead != 0) munmap(begin, ahead);
  if (ahead != kHugePage) munmap(begin + ahead + mapped(nbytes), kHugePage - ahead);
  madvise(begin + ahead, mapped(nbytes), MADV_HUGEPAGE);
  return begin + ahead;
}

void to_system(void* block, size_t nbytes) noexcept {
  if (nbytes < kHugePage) {
    std::free(block);
  } else {
    munmap(block, mapped(nbytes));
  }
}
#else
void* from_system(size_t nbytes) { return ::operator new(nbytes, std::align_val_t{kAlignment}); }

void to_system(void* block, size_t) noexcept { ::operator delete(block, std::align_val_t{kAlignment}); }
#endif

}  // namespace

void* take(size_t nbytes) {
  if (fails_now()) throw std::bad_alloc();
  if (nbytes < kWorthKeeping) return from_system(nbytes == 0 ? 1 : nbytes);
  Free& held = free_blocks();
  {
    const std::lock_guard<std::mutex> lock(held.mutex);
    std::vector<void*>& blocks = held.blocks[nbytes];
    blocks.reserve(kKeptPerSize);  // so that giving back cannot fail
    if (!blocks.empty()) {
      void* block = blocks.back();
      blocks.pop_back();
      return block;
    }
  }
  return from_system(nbytes);
}

void give_back(void* block, size_t nbytes, bool keep) noexcept {
  if (keep && nbytes >= kWorthKeeping) {
    Free& held = free_blocks();
    const std::lock_guard<std::mutex> lock(held.mutex);
    const auto blocks = held.blocks.find(nbytes);
    if (blocks != held.blocks.end() && blocks->second.size() < kKeptPerSize) {
      blocks->second.push_back(block);
      return;
    }
  }
  to_system(block, nbytes == 0 ? 1 : nbytes);
}

bool lies_about(size_t nbytes) {
  if (nbytes < kHugePage) return true;
  Free& held = free_blocks();
  const std::lock_guard<std::mutex> lock(held.mutex);
  const auto blocks = held.blocks.find(nbytes);
  return blocks != held.blocks.end() && !blocks->second.empty();
}

void trim() noexcept {
  Free& held = free_blocks();
  const std::lock_guard<std::mutex> lock(held.mutex);
  for (auto& [nbytes, blocks] : held.blocks) {
    for (void* block : blocks) to_system(block, nbytes);
    blocks.clear();  // which keeps its room, for `give_back`
  }
}

void fail_after(int64_t count) noexcept { failing = count; }

int64_t left_to_fail() noexcept { return failing; }

bool fails_now() noexcept { return failing.load(std::memory_order_relaxed) >= 0 && failing.fetch_sub(1) == 0; }

}  // namespace fastagg::memory
