// Includes pybind11 with checks for failed allocations. All files of this folder include python.h instead of pybind11.
#pragma once

#include <Python.h>

#include <new>

namespace fastagg::bindings {

// Returns `object`, or throws std::bad_alloc if `object` is null. pybind11 (3.1) either does not check whether a name
// or number could be allocated, or raises an error that needs more memory.
inline PyObject* made(PyObject* object) {
  if (object != nullptr) return object;
  PyErr_Clear();
  throw std::bad_alloc();
}

}  // namespace fastagg::bindings

#define PyUnicode_InternFromString(text) ::fastagg::bindings::made(PyUnicode_InternFromString(text))
#define PyFloat_FromDouble(number) ::fastagg::bindings::made(PyFloat_FromDouble(number))
#define PyLong_FromSize_t(number) ::fastagg::bindings::made(PyLong_FromSize_t(number))
#define PyLong_FromSsize_t(number) ::fastagg::bindings::made(PyLong_FromSsize_t(number))
#define PyLong_FromLongLong(number) ::fastagg::bindings::made(PyLong_FromLongLong(number))
#define PyLong_FromUnsignedLongLong(number) ::fastagg::bindings::made(PyLong_FromUnsignedLongLong(number))
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#undef PyUnicode_InternFromString
#undef PyFloat_FromDouble
#undef PyLong_FromSize_t
#undef PyLong_FromSsize_t
#undef PyLong_FromLongLong
#undef PyLong_FromUnsignedLongLong
