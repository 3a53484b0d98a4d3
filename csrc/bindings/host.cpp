#include "host.h"

#include <unistd.h>
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "../store/blocking.h"
#include "structs.h"
#if defined(FASTAGG_CUDA)
#include "../cuda/cuda.h"
#endif

namespace fastagg::bindings {
namespace {

// Runs `act`. If Python's exit ends this thread by unwinding `act`, sleeps until the process ends (GilRelease, host.h).
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

// When Python exits, end_calls waits until no call of another thread has run for kQuiet, but at most for kLongestEnd.
constexpr std::chrono::milliseconds kQuiet{50}, kLongestEnd{1000};

struct CallCount {
  std::atomic<uint64_t> begun{0}, ended{0};
  pid_t process = getpid();            // the process of the counted calls, whose threads a forked child does not have
  std::atomic<std::thread::id> first;  // the thread of the first call
  std::atomic<bool> several{false};    // whether another thread than `first` has made a call
  std::atomic<std::thread::id> ends;   // the thread in which Python exits; calls of other threads then sleep
} calls;

void* begin_waiting() { return PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }

void end_waiting(void* state) {
  if (state != nullptr) or_sleep([&] { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); });
}

void* look_for_signals(void* state) {
  if (state == nullptr) return nullptr;  // this thread did not hold the GIL when its wait began
  end_waiting(state);
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  return PyEval_SaveThread();
}

thread_local const GilRelease* innermost = nullptr;  // this thread's innermost GilRelease

struct GilUnlocker {
  void operator()(void* object) const noexcept {
    if (Py_IsInitialized() == 0 || GilRelease::keep(static_cast<PyObject*>(object))) return;
    const GilHolder held;
    Py_DECREF(static_cast<PyObject*>(object));
  }
};

const char* name_of(Why why) {
  switch (why) {
    case Why::kUnknownClient: return "UnknownClient";
    case Why::kUnknownVersion: return "UnknownVersion";
    case Why::kAlreadyCounted: return "AlreadyCounted";
    case Why::kStaleIncarnation: return "StaleIncarnation";
    case Why::kOtherClient: return "OtherClient";
    case Why::kBusy: return "Busy";
    case Why::kTooSoon: return "TooSoon";
    case Why::kReentered: return "Reentered";
    case Why::kNotFinite: return "NonFiniteUpdate";
    case Why::kTooLarge: return "UpdateTooLarge";
    case Why::kNotDurable: return "NotDurable";
    case Why::kEncoding: return "EncodingError";
    case Why::kDamaged: return "CheckpointError";
    default: return "ConfigError";
  }
}

// Whether Python's current error is MemoryError. pybind11 may have thrown another exception because of that error.
bool has_no_memory() { return PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_MemoryError) != 0; }

// Sets OSError. A std::system_error is thrown if the operating system could not start a thread.
void set_error(const std::system_error& error) {
  py::set_error(PyExc_OSError, py::make_tuple(error.code().value(), error.code().message()));
}

void raise_as(const char* name, const char* text) {
  py::set_error(py::module_::import("fastagg.errors").attr(name), text);
}

}  // namespace

GilRelease::GilRelease(bool worth) : state_(worth && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {
  if (state_ != nullptr) outer_ = std::exchange(innermost, this);
}
GilRelease::~GilRelease() {
  if (state_ == nullptr) return;
  innermost = outer_;
  end_waiting(state_);
  for (PyObject* object : gone_) Py_DECREF(object);
}

bool GilRelease::keep(PyObject* object) noexcept {
  if (innermost == nullptr || PyGILState_Check() != 0) return false;
  try {
    innermost->gone_.push_back(object);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

GilHolder::GilHolder() : state_{} {
  or_sleep([this] { state_ = PyGILState_Ensure(); });
}
GilHolder::~GilHolder() { PyGILState_Release(state_); }

PythonCall::PythonCall() {
  const std::thread::id mine = std::this_thread::get_id();
  ++calls.begun;  // before `ends` is read, so that the exit waits for this call or this call sees the exit
  if (const std::thread::id ends = calls.ends; ends != std::thread::id{} && ends != mine) {
    ++calls.ended;
    PyEval_SaveThread();
    for (;;) pause();
  }
  std::thread::id first = calls.first.load(std::memory_order_relaxed);
  if (first == mine || (first == std::thread::id{} && calls.first.compare_exchange_strong(first, mine))) return;
  if (first != mine && !calls.several.load(std::memory_order_relaxed)) calls.several = true;
}
PythonCall::~PythonCall() { ++calls.ended; }

void end_calls() {
  using Clock = std::chrono::steady_clock;
  const std::thread::id mine = std::this_thread::get_id();
  calls.ends = mine;
  if (calls.process != getpid() || (!calls.several && calls.first.load() == mine)) return;
  const Clock::time_point last = Clock::now() + kLongestEnd;
  Clock::time_point since = Clock::now();
  const auto open = [] { return calls.begun != calls.ended; };
  for (uint64_t came = calls.begun; Clock::now() < last && (open() || Clock::now() < since + kQuiet);) {
    {
      const GilRelease others;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (calls.begun != came || open()) came = calls.begun, since = Clock::now();
  }
}

py::object item_at(py::handle sequence, Py_ssize_t place) {
  PyObject* const item = PySequence_GetItem(sequence.ptr(), place);
  if (item == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(item);
}

py::object item_of(py::handle dict, py::handle key) {
  PyObject* const item = PyObject_GetItem(dict.ptr(), key.ptr());
  if (item == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(item);
}

store::Owner owner_of(py::object object) {
  PyObject* const held = object.release().ptr();
  return store::Owner(held, GilUnlocker{});
}

PyObject* object_of(const store::Owner& owner) {
  return std::get_deleter<GilUnlocker>(owner) == nullptr ? nullptr : static_cast<PyObject*>(owner.get());
}

void install_waiting() { store::BlockingWait::install({&begin_waiting, &end_waiting, &look_for_signals}); }

void set_error(const Refusal& refused) {
  raise_as(name_of(refused.why), refused.what());
  if (refused.why != Why::kAlreadyCounted || refused.version < 0) return;
  py::error_already_set raised;
  py::setattr(raised.value(), "version", py::int_(refused.version));
  py::setattr(raised.value(), "applied", py::bool_(refused.applied));
  raised.restore();
}

namespace {

// Sets Python's error for the current C++ exception. May throw, because a Python error needs memory.
void translate_current_exception() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const Refusal& refused) {
    bindings::set_error(refused);
  } catch (const SettingError& error) {
    raise_as("ConfigError", error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::system_error& error) {
    set_error(error);
#if defined(FASTAGG_CUDA)
  } catch (const cuda::Error& error) {
    raise_as("DeviceError", error.what());
#endif
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::logic_error& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_SystemError, "an unknown error");
  }
}

}  // namespace

void set_error_of_current_exception() noexcept {
  if (has_no_memory()) return;
  try {
    translate_current_exception();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    if (PyErr_Occurred() == nullptr) PyErr_NoMemory();
  }
}

void set_error_of(const std::exception_ptr& raised) {
  try {
    std::rethrow_exception(raised);
  } catch (...) {
    set_error_of_current_exception();
  }
}

}  // namespace fastagg::bindings
