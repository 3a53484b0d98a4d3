// Makes objects of a Python class with __slots__ by writing the slots in memory. Calling the class would take longer
// than a small step.
#pragma once

#include <pybind11/pybind11.h>
#include <structmember.h>  // declares slots before Python 3.12

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace fastagg::serving {

namespace py = pybind11;

class Record {
 public:
  // `names`: the slots of `cls` that are written, in this order. Other slots stay empty.
  Record(py::type cls, const std::vector<std::string>& names) : cls_(std::move(cls)) {
    for (const std::string& name : names) {
      const py::object found = cls_.attr(name.c_str());
      if (!Py_IS_TYPE(found.ptr(), &PyMemberDescr_Type)) throw std::invalid_argument("no slot: " + name);
      offsets_.push_back(reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset);
    }
  }

  // Throws if there is no memory for the object, or if a value is null because there was no memory for it.
  py::object make(std::initializer_list<py::object> values) const {
    auto* type = reinterpret_cast<PyTypeObject*>(cls_.ptr());
    auto made = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));
    if (!made) throw py::error_already_set();
    size_t i = 0;
    for (const py::object& value : values) set(made, i++, value);
    return made;
  }

  // Sets the slot of the `i`-th name.
  void set(const py::object& record, size_t i, const py::object& value) const noexcept {
    auto** place = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(record.ptr()) + offsets_[i]);
    PyObject* before = *place;
    *place = value.inc_ref().ptr();
    Py_XDECREF(before);
  }

 private:
  py::type cls_;
  std::vector<Py_ssize_t> offsets_;
};

}  // namespace fastagg::serving
