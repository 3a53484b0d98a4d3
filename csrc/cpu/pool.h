// One persistent pool of threads for the whole process.
//
// The pool does not use OpenMP, because torch has its own OpenMP runtime. Two such runtimes in one process may deadlock
// or crash, and neither survives a fork. Workers stay awake for some microseconds after a call (tuning.h, `spin`),
// unless another thread needs their core. Then the workers sleep, so that torch's threads can use the cores.
#pragma once

#include <cstdint>

namespace fastagg::cpu {

using Task = void (*)(void* context, int64_t chunk);

// Calls task(context, i) once for each i in 0..chunks-1, on the pool and on the calling thread. Returns when all calls
// are done. Each thread begins with its own share of the chunks, because its caches may still hold the share's data
// from the last call. Then the thread takes chunks of slower threads. If the data may be in caches, only chunks of
// threads that make no progress are taken. If another caller is using the pool, the calling thread works alone.
//
// `bytes` is the number of bytes that all chunks touch. The calling thread works alone below kWorthSharing bytes,
// because moving data between cores would take longer. From kWorthWaking bytes on, sleeping workers are woken, which
// takes 10 to 20 us on a virtual machine. Between the two limits, the work is shared if the workers are awake. Sleeping
// workers are woken for such work only if calls follow each other quickly.
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
