#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#include "race_detector.h"

FASTAGG_PER_BLOCK dim3 threadIdx, blockIdx, blockDim, gridDim;

#if !defined(FASTAGG_RACES)
// The section of the kernels' shared variables (cuda_runtime.h).
extern char __start_fastagg_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_fastagg_shared[] __attribute__((weak, visibility("hidden")));
#endif

namespace emulation {
namespace {

constexpr size_t kStack = size_t{128} << 10;
constexpr unsigned kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr unsigned kMostThreads = 1024;

[[noreturn]] void fault(const char* what) {
  fprintf(stderr, "emulation: block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
  abort();
}

struct Fiber {
  ucontext_t context;
  jmp_buf here;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStack);
  bool entered = false, done = true;
  races::Thread races;
};

// The last of `size` fibers to arrive advances the generation. The others wait until it has advanced.
struct Barrier {
  unsigned waiting = 0, generation = 0;
  races::Meeting races;
};

// The threads of one block. Each is a fiber that stops at barriers and shuffles.
class Block {
 public:
  explicit Block(unsigned threads) : fibers_(threads), warps_(threads / kWarp) {
    if (threads % kWarp != 0 || threads > kMostThreads) fault("a block of threads is no whole number of warps");
  }

  size_t threads() const { return fibers_.size(); }

  void run(const std::function<void()>& kernel) {
    body_ = &kernel;
    warps_.assign(warps_.size(), {});
    whole_ = {};
    for (Fiber& each : fibers_) {
      each.done = false;
      each.races.begin();
    }
    for (bool left = true; left;) {
      left = false;
      moved_ = false;
      for (current_ = 0; current_ < fibers_.size(); ++current_) {
        if (fibers_[current_].done) continue;
        threadIdx.x = current_;
        resume();
        left = left || !fibers_[current_].done;
      }
      if (left && !moved_) fault("waits at a barrier or in a shuffle that others never come to");
    }
    for (Fiber& each : fibers_) each.races.end();
  }

  unsigned current() const { return current_; }
  Fiber& fiber() { return fibers_[current_]; }
  Barrier& whole() { return whole_; }
  Barrier& warp() { return warps_[current_ / kWarp]; }
  char* slot(unsigned thread) { return slots_[thread]; }

  void wait(Barrier& barrier, unsigned size) {
    const unsigned generation = barrier.generation;
    moved_ = true;
    if (++barrier.waiting == size) {
      barrier.waiting = 0;
      ++barrier.generation;
      return;
    }
    while (barrier.generation == generation) leave();
  }

 private:
#if defined(FASTAGG_RACES)
  void leave() {
    Fiber& mine = fiber();
    races::enter(scheduler_races_);
    swapcontext(&mine.context, &scheduler_);
  }
  void resume() {
    Fiber& next = fiber();
    if (!next.entered) {
      next.entered = true;
      make(next);
    }
    scheduler_races_ = races::here();
    races::enter(next.races.fiber);
    swapcontext(&scheduler_, &next.context);
  }
  ucontext_t scheduler_;
  void* scheduler_races_ = nullptr;
#else
  // A fiber is entered through its context the first time, and by jumps later. The C library's context switch calls the
  // kernel because of signals. That takes longer than a thread's work between two barriers.
  void leave() {
    if (_setjmp(fiber().here) == 0) _longjmp(scheduler_, 1);
  }
  void resume() {
    if (_setjmp(scheduler_) != 0) return;
    Fiber& next = fiber();
    if (next.entered) _longjmp(next.here, 1);
    next.entered = true;
    make(next);
    setcontext(&next.context);
  }
  jmp_buf scheduler_;
#endif

  void make(Fiber& next) {
    getcontext(&next.context);
    next.context.uc_stack.ss_sp = next.stack.get();
    next.context.uc_stack.ss_size = kStack;
    next.context.uc_link = nullptr;
    makecontext(&next.context, start, 0);
  }
  static void start();

  std::vector<Fiber> fibers_;
  std::vector<Barrier> warps_;
  Barrier whole_;
  unsigned current_ = 0;
  bool moved_ = false;
  const std::function<void()>* body_ = nullptr;
  alignas(16) char slots_[kMostThreads][16];
};

thread_local Block* block;

void Block::start() {
  for (;;) {
    (*block->body_)();
    block->moved_ = true;
    block->fiber().done = true;
    block->leave();
  }
}

// Not memcpy, because ThreadSanitizer would record its accesses.
void copy(volatile char* to, const char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to[i] = from[i];
}

std::mutex mutex;  // one launch at a time

// A new order at every launch, because no result may depend on it. Every process has the same sequence of orders.
std::vector<unsigned> shuffled(unsigned blocks) {
  static uint64_t state =
      getenv("FASTAGG_EMULATION_SEED") != nullptr ? strtoull(getenv("FASTAGG_EMULATION_SEED"), nullptr, 10) : 1;
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  for (unsigned i = blocks; i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
  return order;
}

#if !defined(FASTAGG_RACES)
// Shared memory may hold anything when a block begins. Here it holds NaN, -1 and true.
__attribute__((no_sanitize_address)) void poison_shared_memory() {
  for (volatile char* at = __start_fastagg_shared; at < __stop_fastagg_shared; ++at) *at = static_cast<char>(0xff);
}
#endif

}  // namespace

int lane() { return static_cast<int>(block->current() % kWarp); }

void exchange(unsigned mask, void* value, size_t bytes, int from) {
  if (mask != kAll) fault("a shuffle whose mask does not name the whole warp");
  Block& mine = *block;
  copy(mine.slot(mine.current()), static_cast<const char*>(value), bytes);
  mine.wait(mine.warp(), kWarp);
  copy(static_cast<char*>(value), mine.slot(mine.current() / kWarp * kWarp + static_cast<unsigned>(from)), bytes);
  mine.wait(mine.warp(), kWarp);  // all must have read before anyone writes
}

void run(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  const std::lock_guard<std::mutex> lock(mutex);
  const std::vector<unsigned> order = shuffled(blocks);
#if defined(FASTAGG_RACES)
  // One thread for every block. Only fences may order the accesses of different blocks.
  std::vector<std::thread> running;
  for (const unsigned which : order)
    running.emplace_back([=, &kernel] {
      Block own(threads);
      block = &own;
      blockIdx = dim3(which);
      blockDim = dim3(threads);
      gridDim = dim3(blocks);
      own.run(kernel);
    });
  for (std::thread& each : running) each.join();
#else
  static std::unique_ptr<Block> own;  // made once and used by every launch
  if (own == nullptr || own->threads() != threads) own = std::make_unique<Block>(threads);
  block = own.get();
  blockDim = dim3(threads);
  gridDim = dim3(blocks);
  for (const unsigned which : order) {
    blockIdx = dim3(which);
    poison_shared_memory();
    own->run(kernel);
  }
#endif
}

bool simulate(const void* kernel, unsigned blocks, unsigned threads, const Argument* arguments, size_t count) {
  static const auto execute = []() -> void (*)(const void*, unsigned, unsigned, const Argument*, size_t) {
    const char* const path = getenv("FASTAGG_SIMULATOR");
    if (path == nullptr) return nullptr;
    void* const library = dlopen(path, RTLD_LAZY);
    if (library == nullptr) fprintf(stderr, "emulation: %s\n", dlerror()), abort();
    return reinterpret_cast<void (*)(const void*, unsigned, unsigned, const Argument*, size_t)>(
        dlsym(library, "fastagg_simulate"));
  }();
  if (execute == nullptr) return false;
  const std::lock_guard<std::mutex> lock(mutex);
  return execute(kernel, blocks, threads, arguments, count), true;
}

void sync_block(Place place) {
  Block& mine = *block;
  mine.fiber().races.arrive(mine.whole().races, mine.whole().generation, place);
  const unsigned generation = mine.whole().generation;
  mine.wait(mine.whole(), static_cast<unsigned>(mine.threads()));
  mine.fiber().races.pass(mine.whole().races, generation, place);
}

void sync_warp(Place place) {
  Block& mine = *block;
  const unsigned generation = mine.warp().generation;
  mine.fiber().races.arrive(mine.warp().races, generation, place);
  mine.wait(mine.warp(), kWarp);
  mine.fiber().races.pass(mine.warp().races, generation, place);
}

void fence(Place place) { block->fiber().races.fence(place); }

unsigned add(unsigned* address, unsigned value) {
  block->fiber().races.before_atomic(address);
  const unsigned before = __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
  block->fiber().races.after_atomic(address);
  return before;
}

}  // namespace emulation
