// Saves the engine's states for checkpoints as Python dicts of numbers, lists, NumPy arrays and torch tensors. Loads
// states from such dicts.
#pragma once

#include <functional>
#include <vector>

#include "../engine/archive.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

template <typename T>
py::array_t<T> array_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <typename T>
std::vector<T> vector_from(const py::object& object) {
  const py::array_t<T, py::array::c_style | py::array::forcecast> array(object);
  return {array.data(), array.data() + array.size()};
}

// `saved` returns the fields of a state as a dict. `load` sets the fields of a state from a dict. `load` throws
// std::invalid_argument, or a Python error for data of a wrong type. `fields` must pass each field to the archive.
py::dict saved(const std::function<void(engine::Archive&)>& fields);
void load(const py::dict& state, const std::function<void(engine::Archive&)>& fields);

}  // namespace fastagg::bindings
