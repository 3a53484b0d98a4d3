// Distinguishes a forked child from its parent. `process` returns a number that differs between the two. The call is
// faster than getpid. This file also replaces files that forked children must not have.
#pragma once

#include <array>
#include <atomic>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#endif

namespace fastagg::store {

inline std::atomic<int> forks{0};                           // the number of counted forks that led to this process
inline std::array<std::atomic<int>, 1024> parents_files{};  // each entry: a descriptor plus 1; 0: the entry is empty

#if defined(__unix__) || defined(__APPLE__)
// Runs in every forked child. Replaces the files of `parents_files` by /dev/null. If that fails, closes the file.
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

// Gives forked children /dev/null in place of this file, until `share` is called. Meant for locked files, because a
// child would share the lock and may live longer than the parent. Returns false if there are too many such files.
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
