#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {
namespace {

constexpr size_t kStack = size_t{128} << 10;
constexpr unsigned kWarp = 32;

// Fibers are made once and serve every launch. They are entered by their context the first time and by jumps from then
// on: a context switch of the C library's asks the kernel about signals, which takes longer than what a thread does
// between two barriers.
struct Fiber {
  ucontext_t start;
  jmp_buf here;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStack);
  bool entered = false, done = true;
};

// The last of `size` fibers to come moves the generation on; the others wait until it has moved.
struct Barrier {
  unsigned waiting = 0, generation = 0;
};

std::mutex mutex;  // one launch at a time: the shared memory of a kernel is a static variable
jmp_buf scheduler;
std::vector<Fiber> fibers;
std::vector<Barrier> warps;
Barrier block;
unsigned current;
const std::function<void()>* body;
alignas(16) char slots[1024][16];

void yield() {
  if (_setjmp(fibers[current].here) == 0) _longjmp(scheduler, 1);
}

void wait(Barrier& barrier, unsigned size) {
  const unsigned generation = barrier.generation;
  if (++barrier.waiting == size) {
    barrier.waiting = 0;
    ++barrier.generation;
    return;
  }
  while (barrier.generation == generation) yield();
}

void fiber() {
  for (;;) {
    (*body)();
    fibers[current].done = true;
    yield();
  }
}

void resume() {
  if (_setjmp(scheduler) != 0) return;
  Fiber& next = fibers[current];
  if (next.entered) _longjmp(next.here, 1);
  next.entered = true;
  getcontext(&next.start);
  next.start.uc_stack.ss_sp = next.stack.get();
  next.start.uc_stack.ss_size = kStack;
  next.start.uc_link = nullptr;
  makecontext(&next.start, fiber, 0);
  setcontext(&next.start);
}

}  // namespace

int lane() { return static_cast<int>(current % kWarp); }

void exchange(void* value, size_t bytes, int from) {
  Barrier& warp = warps[current / kWarp];
  memcpy(slots[current], value, bytes);
  wait(warp, kWarp);
  memcpy(value, slots[current / kWarp * kWarp + static_cast<unsigned>(from)], bytes);
  wait(warp, kWarp);  // nobody writes before all have read
}

void run(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  const std::lock_guard<std::mutex> lock(mutex);
  body = &kernel;
  if (fibers.size() != threads) fibers = std::vector<Fiber>(threads);
  blockDim = dim3(threads);
  gridDim = dim3(blocks);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    warps.assign(threads / kWarp, {});
    block = {};
    for (Fiber& each : fibers) each.done = false;
    for (bool left = true; left;) {
      left = false;
      for (current = 0; current < threads; ++current) {
        if (fibers[current].done) continue;
        threadIdx.x = current;
        resume();
        left = left || !fibers[current].done;
      }
    }
  }
}

void sync_block() { wait(block, blockDim.x); }
void sync_warp() { wait(warps[current / kWarp], kWarp); }

}  // namespace emulation

void __syncthreads() { emulation::sync_block(); }
void __syncwarp() { emulation::sync_warp(); }
