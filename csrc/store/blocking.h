// A scope around every wait for another thread, a disk or a device. A host language installs hooks for such waits:
// Python lets other threads run, and handles signals. Without hooks nothing happens.
#pragma once

namespace fastagg::store {

class BlockingWait {
 public:
  struct Host {
    void* (*begin)();             // a wait begins; returns the state for `end`
    void (*end)(void*);           // the wait is over
    void* (*interrupted)(void*);  // may throw, for example because of Ctrl-C; returns the new state for `end`
  };
  static void install(const Host& host) { installed() = host; }

  BlockingWait() : state_(installed().begin == nullptr ? nullptr : installed().begin()) {}
  BlockingWait(const BlockingWait&) = delete;
  BlockingWait& operator=(const BlockingWait&) = delete;
  ~BlockingWait() {
    if (installed().end != nullptr) installed().end(state_);
  }

  // Called now and then during a long wait, without a lock.
  void check() {
    if (installed().interrupted == nullptr) return;
    void* const before = state_;
    state_ = nullptr;
    state_ = installed().interrupted(before);
  }

 private:
  static Host& installed() {
    static Host host{};
    return host;
  }
  void* state_;
};

}  // namespace fastagg::store
