// The lock of a server. One thread is inside at a time. A thread that is inside and comes again, from a hook, a
// finalizer or a signal handler, is refused: it would change what the outer call is working on.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>

namespace fastagg::engine {

class Gate {
 public:
  Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Throws Refusal: kReentered, kBusy (with `limited`: too many wait), kOtherProcess (this is a fork). Whoever waits
  // looks for signals.
  void enter(bool limited = false);
  void leave() noexcept;
  bool is_mine() const;
  // From now on nobody gets in: kRetired. The caller is inside.
  void retire() { retired_ = true; }
  int64_t waiting() const { return waiting_; }

  std::atomic<int64_t> most_waiting{std::numeric_limits<int64_t>::max()};

 private:
  std::timed_mutex mutex_;
  std::atomic<const void*> owner_{nullptr};  // an address that belongs to the thread inside
  std::atomic<int64_t> waiting_{0};
  bool retired_ = false;
  const int process_;
};

class Inside {
 public:
  explicit Inside(Gate& gate, bool limited = false) : gate_(gate) { gate_.enter(limited); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() { gate_.leave(); }

 private:
  Gate& gate_;
};

}  // namespace fastagg::engine
