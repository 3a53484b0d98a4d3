// pybind11, as this project includes it.
#pragma once

#include <Python.h>

#include <new>

namespace fastagg::bindings {

// pybind11 (3.1) looks for a keyword with what this returned, and does not ask whether there was memory for it.
inline PyObject* interned(const char* text) {
  PyObject* const made = PyUnicode_InternFromString(text);
  if (made != nullptr) return made;
  PyErr_Clear();
  throw std::bad_alloc();
}

}  // namespace fastagg::bindings

#define PyUnicode_InternFromString(text) ::fastagg::bindings::interned(text)
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#undef PyUnicode_InternFromString
