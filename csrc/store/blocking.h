// Surrounds every wait for another thread, a disk or a device. A host language installs what it must do meanwhile:
// Python lets other threads run, and looks for signals. Without one nothing happens.
#pragma once

namespace fastagg::store {

class BlockingWait {
 public:
  struct Host {
    void* (*begin)();             // the caller begins to wait; what `end` is given
    void (*end)(void*);           // it goes on
    void* (*interrupted)(void*);  // may throw, for example because of Ctrl-C; what `end` is given from now on
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
