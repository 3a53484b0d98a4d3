// What Python needs around the engine: its lock, its objects as owners of memory, its errors.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "../refusal.h"
#include "../store/vector.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

// From so many elements on a pass takes longer than taking the GIL again.
constexpr int64_t kWorthReleasing = 32768;

// Releases the GIL, if this thread has it and `worth`. When Python exits, it ends every thread that asks for the GIL
// again by unwinding its C++ frames, which a destructor must not allow. Such a thread sleeps here until the process is
// gone.
class GilRelease {
 public:
  explicit GilRelease(bool worth = true);
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease();
  // An object that is let go meanwhile, for when this thread has the GIL again: asking for it could take long.
  static bool keep(PyObject* object) noexcept;

 private:
  PyThreadState* state_;
  const GilRelease* outer_ = nullptr;
  mutable std::vector<PyObject*> gone_;
};

// Holds the GIL, whether or not this thread has it.
class GilHolder {
 public:
  GilHolder();
  GilHolder(const GilHolder&) = delete;
  GilHolder& operator=(const GilHolder&) = delete;
  ~GilHolder();

 private:
  PyGILState_STATE state_;
};

// A call from Python that may take long or use tensors. Torch releases the GIL in its own methods, where a thread that
// Python ends does not survive either: it takes the process along (abort). So the end of Python waits a moment for the
// calls of other threads, and a thread that calls later sleeps.
class PythonCall {
 public:
  PythonCall();
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;
  ~PythonCall();
};
// Called at the end of Python (`atexit`), which waits for other calls.
void end_calls();

// What is at this place of a list or a tuple, or for this key in a dict; null: nothing. Another thread may change the
// container meanwhile where Python has no global lock, so the object is never borrowed from it.
py::object item_at(py::handle sequence, Py_ssize_t place);
py::object item_of(py::handle dict, py::handle key);

// An object as the owner of memory; any thread may let it go. `object_of` gives it back, or null for memory that Python
// does not own.
store::Owner owner_of(py::object object);
PyObject* object_of(const store::Owner& owner);

// Waits let other Python threads run, and look for signals.
void install_waiting();

// Sets the Python error of a refusal.
void set_error(const Refusal& refused);
// Runs `act`, and returns what it returns; null with a Python error set, if it throws.
template <typename Act>
PyObject* guarded(Act act) noexcept;
void set_error_of_current_exception() noexcept;
// The same for pybind11's functions; only the errors of this package.
void set_error_of(const std::exception_ptr& raised);

template <typename Act>
PyObject* guarded(Act act) noexcept {
  try {
    return act();
  } catch (...) {
    set_error_of_current_exception();
    return nullptr;
  }
}

}  // namespace fastagg::bindings
