// Releases the GIL for a while. When Python exits, it ends every thread that asks for the GIL again by unwinding its
// C++ frames, which a destructor must not allow. Such a thread sleeps here until the process is gone.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace fastagg::serving {

// Runs `act`, which asks Python for the GIL.
template <typename Act>
void or_sleep(Act act) {
#if defined(__GLIBCXX__)
  try {
    act();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
#else
  act();
#endif
}

class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() { lock(); }

  // Throws what a signal handler raises.
  void check_signals() {
    lock();
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    state_ = PyEval_SaveThread();
  }

 private:
  void lock() {
    if (state_ != nullptr) or_sleep([this] { PyEval_RestoreThread(state_); });
    state_ = nullptr;
  }

  PyThreadState* state_;
};

}  // namespace fastagg::serving
