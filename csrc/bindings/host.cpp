#include "host.h"

#include <unistd.h>
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include "../store/blocking.h"
#include "../store/slot_file.h"
#include "structs.h"

namespace fastagg::bindings {
namespace {

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

void* begin_waiting() { return PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }

void end_waiting(void* state) {
  if (state != nullptr) or_sleep([&] { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); });
}

void* look_for_signals(void* state) {
  if (state == nullptr) return nullptr;  // no thread of Python's
  end_waiting(state);
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  return PyEval_SaveThread();
}

struct LetsGo {
  void operator()(void* object) const noexcept {
    if (Py_IsInitialized() == 0) return;
    const Holds held;
    Py_DECREF(static_cast<PyObject*>(object));
  }
};

const char* name_of(Why why) {
  switch (why) {
    case Why::kUnknownClient: return "UnknownClient";
    case Why::kUnknownVersion: return "UnknownVersion";
    case Why::kStaleIncarnation: return "StaleIncarnation";
    case Why::kBusy: return "Busy";
    case Why::kReentered: return "Reentered";
    case Why::kNotFinite: return "NonFiniteUpdate";
    case Why::kTooLarge: return "UpdateTooLarge";
    case Why::kNotDurable: return "NotDurable";
    case Why::kDamaged: return "CheckpointError";
    default: return "ConfigError";
  }
}

void raise_as(const char* name, const char* text) {
  py::set_error(py::module_::import("fastagg.errors").attr(name), text);
}

}  // namespace

Released::Released(bool worth) : state_(worth && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
Released::~Released() { end_waiting(state_); }

Holds::Holds() : state_{} {
  or_sleep([this] { state_ = PyGILState_Ensure(); });
}
Holds::~Holds() { PyGILState_Release(state_); }

store::Owner owner_of(py::object object) {
  PyObject* const held = object.release().ptr();
  return store::Owner(held, LetsGo{});
}

PyObject* object_of(const store::Owner& owner) {
  return std::get_deleter<LetsGo>(owner) == nullptr ? nullptr : static_cast<PyObject*>(owner.get());
}

void install_waiting() { store::Blocking::install({&begin_waiting, &end_waiting, &look_for_signals}); }

void set_error(const Refusal& refused) { raise_as(name_of(refused.why), refused.what()); }

void set_error_of_current_exception() noexcept {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const Refusal& refused) {
    set_error(refused);
  } catch (const store::SlotsFailed& error) {
    raise_as("CacheError", error.what());
  } catch (const Refused& error) {
    raise_as("ConfigError", error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_SystemError, "an unknown error");
  }
}

void set_error_of(const std::exception_ptr& raised) {
  try {
    std::rethrow_exception(raised);
  } catch (const Refusal& refused) {
    set_error(refused);
  } catch (const store::SlotsFailed& error) {
    raise_as("CacheError", error.what());
  } catch (const Refused& error) {
    raise_as("ConfigError", error.what());
  }
}

}  // namespace fastagg::bindings
