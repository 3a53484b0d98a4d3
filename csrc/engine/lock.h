// The lock of a server. One thread holds it. A thread that holds it and comes again, from a hook, a
// finalizer or a signal handler, is refused: it would change what the outer call is working on.
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

  // Throws Refusal: kReentered, kBusy (with `limited`: too many wait), kOtherProcess (this is a fork). Whoever waits
  // looks for signals.
  void enter(bool limited = false);
  void leave() noexcept;
  bool is_mine() const;
  // From now on nobody gets it: kRetired. The caller holds it.
  void retire() { retired_ = true; }
  int64_t waiting() const { return waiting_; }

  std::atomic<int64_t> most_waiting{std::numeric_limits<int64_t>::max()};

 private:
  std::timed_mutex mutex_;
  std::atomic<const void*> owner_{nullptr};  // an address that belongs to the thread that holds it
  std::atomic<int64_t> waiting_{0};
  bool retired_ = false;
  const int process_;
};

// A call. It computes as IEEE 754 says, also what a kernel's factors are made of before any kernel runs.
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
