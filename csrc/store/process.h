// Which process this is: a number that is another one in a forked child. Asking the system takes longer.
#pragma once

#include <atomic>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace fastagg::store {

inline std::atomic<int> forks{0};  // of this process and those before it

inline int process() {
#if defined(__unix__) || defined(__APPLE__)
  static const int watched = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  static_cast<void>(watched);
#endif
  return forks.load(std::memory_order_relaxed);
}

}  // namespace fastagg::store
