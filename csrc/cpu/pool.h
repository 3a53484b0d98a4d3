// One persistent pool of threads for the whole process.
//
// OpenMP is avoided on purpose: torch brings its own runtime, two in one process deadlock or crash, and neither
// survives a fork. Workers here sleep on a condition variable between calls, so they take nothing from torch's
// threads while a client trains.
#pragma once

#include <cstdint>

namespace fastagg::cpu {

using Task = void (*)(void* context, int64_t chunk);

// Calls task(context, 0..chunks-1), each once, on the pool and on the calling thread; returns when all are done.
// Chunks are handed out one by one, so a core that is slowed down by a neighbour takes fewer. When the pool is busy
// with another caller (two server threads at once) the work runs on the calling thread alone.
//
// `bytes` is what all chunks touch. Where that fits into the caches of one core, the caller does everything: waking a
// worker costs 10 to 20 us on a virtual machine, and what one core has lately written is slow to reach another.
void parallel(int64_t chunks, int64_t bytes, Task task, void* context);

constexpr int64_t kWorthWaking = int64_t{7} << 19;

template <typename Function>
void parallel(int64_t chunks, int64_t bytes, Function& function) {
  parallel(chunks, bytes, [](void* context, int64_t chunk) { (*static_cast<Function*>(context))(chunk); }, &function);
}

int threads();
void set_threads(int count);  // count >= 1; takes effect at the next call

}  // namespace fastagg::cpu
