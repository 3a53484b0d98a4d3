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

// Releases the GIL if `worth`, and if this thread has the GIL. When Python exits, it ends every thread that asks for
// the GIL, by unwinding the thread's C++ frames. A destructor must not allow that. So such a thread sleeps in the
// destructor until the process ends.
class GilRelease {
 public:
  explicit GilRelease(bool worth = true);
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease();
  // Releases an object only when this thread has the GIL again, because taking the GIL now could be slow. Returns false
  // if the caller must release the object now.
  static bool keep(PyObject* object) noexcept;

 private:
  PyThreadState* state_;
  const GilRelease* outer_ = nullptr;
  mutable std::vector<PyObject*> gone_;
};

// Holds the GIL, even if this thread had released the GIL.
class GilHolder {
 public:
  GilHolder();
  GilHolder(const GilHolder&) = delete;
  GilHolder& operator=(const GilHolder&) = delete;
  ~GilHolder();

 private:
  PyGILState_STATE state_;
};

// A scope for a call from Python that may be long or use tensors. Torch releases the GIL in its own methods. If
// Python's exit ends a thread there, the process aborts. So the exit waits a moment for the calls of other threads, and
// calls that begin later sleep.
class PythonCall {
 public:
  PythonCall();
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;
  ~PythonCall();
};
// Called when Python exits (`atexit`). Waits for other calls.
void end_calls();

// Return the object at a place of a list or tuple, or for a key of a dict. Null: there is none. The reference is not
// borrowed, because without a GIL another thread may change the container.
py::object item_at(py::handle sequence, Py_ssize_t place);
py::object item_of(py::handle dict, py::handle key);

// `owner_of` makes a Python object the owner of memory. Any thread may release the owner. `object_of` returns that
// object, or null if the owner is not a Python object.
store::Owner owner_of(py::object object);
PyObject* object_of(const store::Owner& owner);

// Lets other Python threads run, and signals be handled, while the engine waits (store/blocking.h).
void install_waiting();

// Sets the Python error of a refusal.
void set_error(const Refusal& refused);
// Runs `act`, and returns its result. If it throws, returns null with a Python error set.
template <typename Act>
PyObject* guarded(Act act) noexcept;
void set_error_of_current_exception() noexcept;
// Sets the Python error of an exception from pybind11's functions, but only for the errors of this package.
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
