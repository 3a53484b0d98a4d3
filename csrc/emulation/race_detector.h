// What ThreadSanitizer is told of CUDA's threads, in a build with FASTAGG_RACES: every one is a thread of its own to
// it, which knows of the others what barriers and fences tell it and nothing else. Without FASTAGG_RACES: nothing.
//
//   __syncthreads, __syncwarp   what all threads did before happens before what they do afterwards
//   shuffles                    order nothing
//   __threadfence, atomicAdd    what a thread did before its fence, or learnt at a barrier before it, happens before
//   what
//                               another does after a fence that follows its own atomic on the same address. A barrier
//                               between a fence and its atomic takes the fence's effect away: what was learnt there is
//                               not behind the fence.
//
// FASTAGG_PLANT=FILE:LINE in the environment takes the effect of one barrier or fence away, though threads still wait
// there: a race is planted, and must be found.
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

constexpr unsigned kNoOrder = 1;  // of __tsan_switch_to_fiber

inline void* here() { return __tsan_get_current_fiber(); }
inline void enter(void* fiber) { __tsan_switch_to_fiber(fiber, kNoOrder); }

inline bool planted(Place place) {
  static const char* at = getenv("FASTAGG_PLANT");
  if (at == nullptr) return false;
  const char* slash = strrchr(place.file, '/');
  return at == std::string(slash == nullptr ? place.file : slash + 1) + ":" + std::to_string(place.line);
}

// Two in turn: who leaves a barrier late must not learn what others did after it.
struct Meeting {
  char turn[2];
};

struct Thread {
  void* fiber = nullptr;
  bool fenced = false;
  void* seen = nullptr;  // by an atomic since the last fence

  void begin() { fiber = __tsan_create_fiber(0), fenced = false, seen = nullptr; }
  // What the block did, for who launched it.
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
