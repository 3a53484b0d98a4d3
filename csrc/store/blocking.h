// The scope of every wait for another thread, a disk or a device. Python's hooks (bindings/host.cpp) let other Python
// threads run during a wait, and handle signals. Without installed hooks the scope does nothing.
#pragma once

namespace fastagg::store {

class BlockingWait {
 public:
  struct Host {
    void* (*begin)();             // called when a wait begins; returns the state for `end`
    void (*end)(void*);           // called when the wait is over
    void* (*interrupted)(void*);  // called by `check`; may throw, as for Ctrl-C; returns the new state for `end`
  };
  static void install(const Host& host) { installed() = host; }

  BlockingWait() : state_(installed().begin == nullptr ? nullptr : installed().begin()) {}
  BlockingWait(const BlockingWait&) = delete;
  BlockingWait& operator=(const BlockingWait&) = delete;
  ~BlockingWait() {
    if (installed().end != nullptr) installed().end(state_);
  }

  // Must be called now and then during a long wait. May throw. The caller must not hold a mutex of the waiting object.
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
