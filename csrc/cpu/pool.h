// One persistent pool of threads for the whole process.
//
// The pool does not use OpenMP. Torch has its own OpenMP runtime. Two such runtimes in one process deadlock or crash,
// and neither survives a fork. Workers stay awake for some microseconds after a call (tuning.h, `spin`), unless another
// thread needs their core. Then the workers sleep, so they do not slow down torch's threads while a client trains.
#pragma once

#include <cstdint>

namespace fastagg::cpu {

using Task = void (*)(void* context, int64_t chunk);

// Calls task(context, i) once for each i in 0..chunks-1, on the pool and on the calling thread. Returns when all calls
// are done. Each thread begins with its own share, because its caches may still hold the data of the last call. Then
// the thread helps the others, because their cores may be slower. If the data may be in caches, a thread helps only
// threads that have stopped. If another caller uses the pool at the same time, the work runs on the calling thread
// alone.
//
// `bytes` is the memory that all chunks touch. The caller does little work alone, because data that one core has just
// written reaches another core slowly. Waking a sleeping worker costs 10 to 20 us on a virtual machine. So work of
// medium size is shared with awake workers. Sleeping workers are woken for it only if calls follow each other quickly.
void parallel(int64_t chunks, int64_t bytes, Task task, void* context);

constexpr int64_t kWorthSharing = int64_t{1} << 19;
constexpr int64_t kWorthWaking = int64_t{1} << 22;

template <typename Function>
void parallel(int64_t chunks, int64_t bytes, Function& function) {
  parallel(chunks, bytes, [](void* context, int64_t chunk) { (*static_cast<Function*>(context))(chunk); }, &function);
}

int threads();
void set_threads(int count);  // count >= 1; applies from the next call on

}  // namespace fastagg::cpu
