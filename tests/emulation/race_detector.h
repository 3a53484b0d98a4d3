// Tells ThreadSanitizer about CUDA's threads, in a build with FASTAGG_RACES. Each CUDA thread is a thread of its own
// there, and only barriers and fences order it with others. Without FASTAGG_RACES nothing happens.
//
//   __syncthreads, __syncwarp   what all threads did before it happens before what they do after it
//   shuffles                    order nothing
//   __threadfence, atomicAdd    Thread A: work, fence, atomic. Thread B: a later atomic on that address, fence, work.
//                               A's work, with all that A learnt at barriers before its fence, happens before B's work.
//                               A barrier between A's fence and A's atomic cancels this, because what A learns there is
//                               not behind the fence.
//
// FASTAGG_PLANT=FILE:LINE in the environment disables the effect of one barrier or fence, although threads still wait
// there. This plants a race, which the test must find.
#pragma once

#include <stdlib.h>
#include <string.h>

#include <string>

#include "cuda_runtime.h"

#if defined(FASTAGG_RACES)
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace emulation::races {

#if defined(FASTAGG_RACES)

constexpr unsigned kNoOrder = 1;  // a flag of __tsan_switch_to_fiber

inline void* here() { return __tsan_get_current_fiber(); }
inline void enter(void* fiber) { __tsan_switch_to_fiber(fiber, kNoOrder); }

inline bool planted(Place place) {
  static const char* at = getenv("FASTAGG_PLANT");
  if (at == nullptr) return false;
  const char* slash = strrchr(place.file, '/');
  return at == std::string(slash == nullptr ? place.file : slash + 1) + ":" + std::to_string(place.line);
}

// Two places, used in turn: a thread that leaves a barrier late must not be ordered after what others do later.
struct Meeting {
  char turn[2];
};

struct Thread {
  void* fiber = nullptr;
  bool fenced = false;
  void* seen = nullptr;  // set by an atomic since the last fence

  void begin() { fiber = __tsan_create_fiber(0), fenced = false, seen = nullptr; }
  // Orders the block's work before what its launcher does next.
  void end() {
    void* mine = here();
    enter(fiber);
    __tsan_release(this);
    enter(mine);
    __tsan_acquire(this);
    __tsan_destroy_fiber(fiber);
  }
  void arrive(Meeting& meeting, unsigned generation, Place place) {
    if (!planted(place)) __tsan_release(&meeting.turn[generation % 2]);
  }
  void pass(Meeting& meeting, unsigned generation, Place place) {
    if (!planted(place)) __tsan_acquire(&meeting.turn[generation % 2]);
    fenced = false;
  }
  void fence(Place place) {
    if (planted(place)) return;
    fenced = true;
    if (seen != nullptr) __tsan_acquire(seen);
    seen = nullptr;
  }
  void before_atomic(void* address) {
    if (fenced) __tsan_release(address);
  }
  void after_atomic(void* address) { seen = address; }
};

#else

struct Meeting {};
struct Thread {
  void begin() {}
  void end() {}
  void arrive(Meeting&, unsigned, Place) {}
  void pass(Meeting&, unsigned, Place) {}
  void fence(Place) {}
  void before_atomic(void*) {}
  void after_atomic(void*) {}
};

#endif

}  // namespace emulation::races
