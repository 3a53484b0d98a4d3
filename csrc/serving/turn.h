// A lock for which no more than so many threads may wait. In C++, since a context manager of Python's can be
// interrupted between taking or giving back the lock and its own end, and the lock would stay taken.
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

  // Throws Busy, with the lock as it was; what interrupts the wait passes.
  void enter() {
    // Of Python's calls the fastest: small steps take little longer.
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
  int64_t most_, waiting_ = 0;  // counted by whoever has the GIL
};

}  // namespace fastagg::serving
