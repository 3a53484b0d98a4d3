// The functions with which this folder handles the GIL, Python objects that own memory, and Python's errors.
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

// A pass over a vector with this many elements takes longer than releasing the GIL and taking it again.
constexpr int64_t kWorthReleasing = 32768;

// Releases the GIL for a scope, if `worth` is true and this thread has the GIL. The destructor takes the GIL again.
// When Python exits, it ends every thread that takes the GIL, by unwinding the thread's C++ frames. A destructor must
// not be unwound. So the thread sleeps in the destructor until the process ends.
class GilRelease {
 public:
  explicit GilRelease(bool worth = true);
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease();
  // If this thread has released the GIL with a GilRelease: takes over the caller's reference to `object`, releases it
  // when the thread has the GIL again, and returns true. Otherwise, or without memory, returns false. The caller must
  // then release the reference.
  static bool keep(PyObject* object) noexcept;

 private:
  PyThreadState* state_;
  const GilRelease* outer_ = nullptr;
  mutable std::vector<PyObject*> gone_;
};

// Holds the GIL for a scope. Takes the GIL if this thread does not have it.
class GilHolder {
 public:
  GilHolder();
  GilHolder(const GilHolder&) = delete;
  GilHolder& operator=(const GilHolder&) = delete;
  ~GilHolder();

 private:
  PyGILState_STATE state_;
};

// The scope of a call from Python that may be long or use tensors. Torch's methods release the GIL. If Python exits and
// ends a thread inside such a method, the process aborts. So Python's exit waits up to a second for the calls of other
// threads. Calls that begin after Python's exit sleep.
class PythonCall {
 public:
  PythonCall();
  PythonCall(const PythonCall&) = delete;
  PythonCall& operator=(const PythonCall&) = delete;
  ~PythonCall();
};
// Waits for the calls of other threads. Python calls this function when the process exits (`atexit`).
void end_calls();

// Return the item at an index of a list or tuple, or for a key of a dict. Return null if there is no such item. The
// returned reference is not borrowed, because without a GIL another thread may change the container.
py::object item_at(py::handle sequence, Py_ssize_t place);
py::object item_of(py::handle dict, py::handle key);

// `owner_of` makes an owner of memory that keeps a Python object alive. Any thread may release the owner. `object_of`
// returns the Python object of an owner, or null if the owner has none.
store::Owner owner_of(py::object object);
PyObject* object_of(const store::Owner& owner);

// Installs the hooks of store/blocking.h, which let other Python threads run during waits, and handle signals.
void install_waiting();

// Sets Python's error for a refusal.
void set_error(const Refusal& refused);
// Returns the result of `act()`. If `act` throws, sets Python's error for the exception and returns null.
template <typename Act>
PyObject* guarded(Act act) noexcept;
// Set Python's error for the C++ exception that is being handled, or for `raised`.
void set_error_of_current_exception() noexcept;
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
