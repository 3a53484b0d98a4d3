// The lock of a server, which one thread holds at a time. If the holder enters again, from a hook, a finalizer or a
// signal handler, the second entry is refused, because it would change state that the first call is using.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>

#include "../cpu/floats.h"

namespace fastagg::engine {

class Lock {
 public:
  Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // Waits for the lock. The thread handles signals while it waits. With `limited`, throws Refusal, kBusy, if
  // `most_waiting` threads wait already. Also throws kReentered, kOtherProcess (in a forked process) and kRetired.
  void enter(bool limited = false);
  void leave() noexcept;
  bool is_mine() const;
  // Refuses all later callers with kRetired. The caller holds the lock.
  void retire() { retired_ = true; }
  int64_t waiting() const { return waiting_; }

  std::atomic<int64_t> most_waiting{std::numeric_limits<int64_t>::max()};

 private:
  std::timed_mutex mutex_;
  std::atomic<const void*> owner_{nullptr};  // identifies the thread that holds the lock
  std::atomic<int64_t> waiting_{0};
  bool retired_ = false;
  const int process_;
};

// A scope that holds the lock. All floating-point arithmetic in the scope follows IEEE 754, even outside of kernels.
class EngineCall {
 public:
  explicit EngineCall(Lock& lock, bool limited = false) : lock_(lock) { lock_.enter(limited); }
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;
  ~EngineCall() { lock_.leave(); }

 private:
  Lock& lock_;
  const cpu::PlainFloats plain_;
};

}  // namespace fastagg::engine
