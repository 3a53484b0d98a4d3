// One persistent pool of threads for the whole process.
//
// The pool does not use OpenMP. Torch has its own OpenMP runtime; two in one process deadlock or crash, and neither
// survives a fork. Workers stay awake for some microseconds after a call (tuning.h, `spin`), unless another thread
// needs their core. Then they sleep, so they do not slow down torch's threads while a client trains.
#pragma once

#include <cstdint>

namespace fastagg::cpu {

using Task = void (*)(void* context, int64_t chunk);

// Calls task(context, 0..chunks-1), each once, on the pool and on the calling thread; returns when all are done.
// Every thread begins with a share of its own, in which it finds in its caches what it left there in the last call, and
// then helps the others: a core that is slowed down by a neighbour does less. When the pool is busy with another caller
// (two server threads at once) the work runs on the calling thread alone.
//
// `bytes` is what all chunks touch. Little work is done by the caller alone: what one core has lately written is slow
// to reach another. Waking a worker that sleeps costs 10 to 20 us on a virtual machine, so middling work is shared with
// those that are awake, and wakes them only where calls follow each other fast.
void parallel(int64_t chunks, int64_t bytes, Task task, void* context);

constexpr int64_t kWorthSharing = int64_t{1} << 19;
constexpr int64_t kWorthWaking = int64_t{1} << 22;

template <typename Function>
void parallel(int64_t chunks, int64_t bytes, Function& function) {
  parallel(chunks, bytes, [](void* context, int64_t chunk) { (*static_cast<Function*>(context))(chunk); }, &function);
}

int threads();
void set_threads(int count);  // count >= 1; takes effect at the next call

}  // namespace fastagg::cpu
