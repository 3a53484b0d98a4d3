#include "blocks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fastagg::store {
namespace {

constexpr size_t kWorthKeeping = size_t{1} << 16;  // in bytes; smaller blocks are reused by the C library itself
constexpr int kKeptPerSize = 2;                    // the most blocks of one size that are kept for reuse
constexpr size_t kAlignment = 64;

struct KeptBlock {
  void* block = nullptr;
  size_t nbytes = 0;
  uint64_t since = 0;
};

// Blocks kept for reuse. When the array is full, the block that was given back first makes room for a new block.
struct FreeBlocks {
  std::mutex mutex;
  std::array<KeptBlock, 32> kept;
  uint64_t time = 0;
};

// Returns this process's only FreeBlocks. It is never destroyed, because a vector may outlive all other objects.
FreeBlocks& free_blocks() {
  static FreeBlocks* const held = [] {
    auto* made = new FreeBlocks;
#if defined(__unix__) || defined(__APPLE__)
    // The mutex is locked during a fork. Otherwise a thread that the child does not have could hold the child's mutex.
    pthread_atfork([] { free_blocks().mutex.lock(); }, [] { free_blocks().mutex.unlock(); },
                   [] { free_blocks().mutex.unlock(); });
#endif
    return made;
  }();
  return *held;
}

std::atomic<int64_t> failing{-1};

constexpr size_t kReserve = size_t{1} << 20;  // in bytes; `free` gives so large a block back to the operating system
std::atomic<void*> reserve{nullptr};
std::new_handler other = nullptr;  // the new-handler that was installed before `use_reserve`

#if defined(__linux__)
constexpr size_t kHugePage = size_t{2} << 20;

// Returns `nbytes`, rounded up to whole huge pages.
size_t mapped(size_t nbytes) { return (nbytes + kHugePage - 1) / kHugePage * kHugePage; }

void* from_system(size_t nbytes) {
  if (nbytes < kHugePage) {
    void* block = std::aligned_alloc(kAlignment, (nbytes + kAlignment - 1) / kAlignment * kAlignment);
    if (block == nullptr) throw std::bad_alloc();
    return block;
  }
  const size_t length = mapped(nbytes) + kHugePage;
  // MAP_PRIVATE, because memory that is shared with forked children usually gets no huge pages.
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
  FreeBlocks& held = free_blocks();
  {
    const std::lock_guard<std::mutex> lock(held.mutex);
    KeptBlock* last = nullptr;  // the block of this size that was given back last: it may still be in the CPU's caches
    for (KeptBlock& kept : held.kept)
      if (kept.block != nullptr && kept.nbytes == nbytes && (last == nullptr || kept.since > last->since)) last = &kept;
    if (last != nullptr) return std::exchange(*last, {}).block;
  }
  return from_system(nbytes);
}

void give_back(void* block, size_t nbytes, bool keep) noexcept {
  KeptBlock goes{block, nbytes, 0};
  if (keep && nbytes >= kWorthKeeping) {
    FreeBlocks& held = free_blocks();
    const std::lock_guard<std::mutex> lock(held.mutex);
    goes.since = ++held.time;
    const auto is_alike = [&](const KeptBlock& kept) { return kept.nbytes == nbytes; };
    if (std::count_if(held.kept.begin(), held.kept.end(), is_alike) < kKeptPerSize)
      std::swap(goes, *std::min_element(held.kept.begin(), held.kept.end(),
                                        [](const KeptBlock& a, const KeptBlock& b) { return a.since < b.since; }));
  }
  if (goes.block != nullptr) to_system(goes.block, goes.nbytes == 0 ? 1 : goes.nbytes);
}

void trim() noexcept {
  FreeBlocks& held = free_blocks();
  const std::lock_guard<std::mutex> lock(held.mutex);
  for (KeptBlock& kept : held.kept)
    if (const KeptBlock goes = std::exchange(kept, {}); goes.block != nullptr) to_system(goes.block, goes.nbytes);
}

std::shared_ptr<void> Shelf::take(size_t nbytes) {
  Block block, small;  // `small`: a free block that is too small; its memory is freed before the new block is allocated
  {
    const std::lock_guard<std::mutex> lock(free_blocks().mutex);
    const auto fits = [=](const Block& spare) { return spare.get_deleter().nbytes >= nbytes; };
    const auto last =
        std::find_if(blocks_.rbegin(), blocks_.rend(), fits);  // given back last: it may still be in the CPU's caches
    if (last != blocks_.rend()) {
      block = std::move(*last);
      blocks_.erase(std::next(last).base());
    } else if (!blocks_.empty()) {
      small = std::move(blocks_.back());
      blocks_.pop_back();
    } else {
      blocks_.reserve(++all_);
    }
  }
  small.reset();
  if (!block) block = block_of(nbytes);
  const auto put = [shelf = shared_from_this(), size = block.get_deleter()](void* back) noexcept {
    const std::lock_guard<std::mutex> lock(free_blocks().mutex);
    shelf->blocks_.emplace_back(back, size);
  };
  return {block.release(), put};
}

void use_reserve() {
  if (void* const held = reserve.exchange(nullptr)) return std::free(held);
  if (other == nullptr) throw std::bad_alloc();
  other();
}

void keep_reserve() {
  if (reserve.load(std::memory_order_relaxed) != nullptr) return;
  static const bool installed = (other = std::set_new_handler(&use_reserve), true);
  void* const made = installed ? std::malloc(kReserve) : nullptr;
  if (made == nullptr) throw std::bad_alloc();
  void* none = nullptr;
  if (!reserve.compare_exchange_strong(none, made)) std::free(made);
}

void fail_after(int64_t count) noexcept { failing = count; }

int64_t left_to_fail() noexcept { return failing; }

bool fails_now() noexcept { return failing.load(std::memory_order_relaxed) >= 0 && failing.fetch_sub(1) == 0; }

}  // namespace fastagg::store
