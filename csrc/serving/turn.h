// A lock for which only a limited number of threads may wait. It is C++, because a context manager in Python can be
// interrupted between taking or releasing the lock and its own end. Then the lock would stay taken.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "ledger.h"

namespace fastagg::serving {

namespace py = pybind11;

class Turn {
 public:
  Turn(const py::object& lock, int64_t most)
      : acquire_(lock.attr("acquire")), release_(lock.attr("release")), most_(most) {}

  // Throws Busy and leaves the lock as it was. An interrupt of the wait raises as usual.
  void enter() {
    // The fastest way to call Python; small steps take little longer than it.
    const auto free = py::reinterpret_steal<py::object>(PyObject_CallOneArg(acquire_.ptr(), Py_False));
    if (!free) throw py::error_already_set();
    if (free.ptr() == Py_True) return;
    if (waiting_ >= most_)
      throw Busy(std::to_string(waiting_) + " answers are waiting already (max_waiting): send this one later");
    const Counted here(&waiting_);
    acquire_();
  }

  void exit() {
    const auto done = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(release_.ptr()));
    if (!done) throw py::error_already_set();
  }
  int64_t waiting() const { return waiting_; }

 private:
  struct Counted {
    explicit Counted(int64_t* count) : count_(count) { ++*count_; }
    ~Counted() { --*count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    int64_t* count_;
  };

  py::object acquire_, release_;
  int64_t most_, waiting_ = 0;  // protected by the GIL
};

}  // namespace fastagg::serving
