// A number of this process, which differs in a forked child and is faster to get than the process id. Also the files
// that a forked child does not keep.
#pragma once

#include <array>
#include <atomic>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#endif

namespace fastagg::store {

inline std::atomic<int> forks{0};                           // number of forks that led to this process
inline std::array<std::atomic<int>, 1024> parents_files{};  // descriptors plus 1; 0: a free place

#if defined(__unix__) || defined(__APPLE__)
// Runs in every forked child.
inline void begin_child() {
  ++forks;
  for (std::atomic<int>& place : parents_files) {
    const int file = place.exchange(0) - 1;
    if (file < 0) continue;
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, file) < 0 || fcntl(file, F_SETFD, FD_CLOEXEC) < 0) close(file);
    if (null >= 0) close(null);
  }
}
#endif

inline int process() {
#if defined(__unix__) || defined(__APPLE__)
  static const int watched = pthread_atfork(nullptr, nullptr, &begin_child);
  static_cast<void>(watched);
#endif
  return forks.load(std::memory_order_relaxed);
}

// Gives forked children /dev/null in place of this file, until `share` is called. Meant for a locked file: a child
// would share the lock, and may live longer. Returns false if there are too many such files.
inline bool keep_from_children(int file) {
  process();
  for (std::atomic<int>& place : parents_files)
    if (int none = 0; place.compare_exchange_strong(none, file + 1)) return true;
  return false;
}
inline void share(int file) {
  for (std::atomic<int>& place : parents_files)
    if (int mine = file + 1; place.compare_exchange_strong(mine, 0)) return;
}

}  // namespace fastagg::store
