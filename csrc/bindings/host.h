// Connects the engine with Python: the GIL, Python objects as owners of memory, and errors.
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

// A pass over this many elements takes longer than taking the GIL again.
constexpr int64_t kWorthReleasing = 32768;

// Releases the GIL, if this thread has it and `worth`. When Python exits, it ends every thread that asks for the GIL by
// unwinding its C++ frames, which a destructor must not allow. Such a thread sleeps here until the process ends.
class GilRelease {
 public:
  explicit GilRelease(bool worth = true);
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease();
  // Releases an object only when this thread has the GIL again, because taking it now could be slow. False: it must be
  // released now.
  static bool keep(PyObject* object) noexcept;

 private:
  PyThreadState* state_;
  const GilRelease* outer_ = nullptr;
  mutable std::vector<PyObject*> gone_;
};

// Holds the GIL, even if this thread had released it.
class GilHolder {
 public:
  GilHolder();
  GilHolder(const GilHolder&) = delete;
  GilHolder& operator=(const GilHolder&) = delete;
  ~GilHolder();

 private:
  PyGILState_STATE state_;
};

// A call from Python that may be long or use tensors. Torch releases the GIL in its own methods. If Python ends a
// thread there, the process aborts. So Python's exit waits a moment for the calls of other threads, and later calls
// sleep.
class PythonCall {
 public:
  PythonCall();
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;
  ~PythonCall();
};
// Called when Python exits (`atexit`). Waits for other calls.
void end_calls();

// The object at a place of a list or tuple, or for a key in a dict; null: there is none. It is not borrowed, because
// without a GIL another thread may change the container.
py::object item_at(py::handle sequence, Py_ssize_t place);
py::object item_of(py::handle dict, py::handle key);

// An object as the owner of memory, which any thread may release. `object_of` returns it, or null for memory that
// Python does not own.
store::Owner owner_of(py::object object);
PyObject* object_of(const store::Owner& owner);

// Makes waits let other Python threads run, and handle signals.
void install_waiting();

// Sets the Python error of a refusal.
void set_error(const Refusal& refused);
// Runs `act`, and returns its result. If it throws, returns null with a Python error set.
template <typename Act>
PyObject* guarded(Act act) noexcept;
void set_error_of_current_exception() noexcept;
// The same for pybind11's functions, but only for the errors of this package.
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
