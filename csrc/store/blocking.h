// BlockingWait is the scope of a wait for another thread, a disk or a device. During the wait, Python's hooks
// (bindings/host.cpp) let other Python threads run, and handle signals. Without hooks, BlockingWait does nothing.
#pragma once

namespace fastagg::store {

class BlockingWait {
 public:
  struct Host {
    void* (*begin)();             // called when a wait begins; returns the state for `end`
    void (*end)(void*);           // called when the wait is over
    void* (*interrupted)(void*);  // called by `check`; may throw, as after Ctrl-C; returns the new state for `end`
  };
  static void install(const Host& host) { installed() = host; }

  BlockingWait() : state_(installed().begin == nullptr ? nullptr : installed().begin()) {}
  BlockingWait(const BlockingWait&) = delete;
  BlockingWait& operator=(const BlockingWait&) = delete;
  ~BlockingWait() {
    if (installed().end != nullptr) installed().end(state_);
  }

  // Handles signals. May throw. A long wait must call `check` repeatedly, without the mutex of its condition variable.
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
