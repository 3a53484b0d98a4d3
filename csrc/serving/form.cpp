#include "form.h"

namespace fastagg::serving {
namespace {

// A plain dict, or an OrderedDict (the type of state_dict()) without an attribute `kind` that describes it further.
bool is_plain_dict(PyObject* given) {
  return PyDict_CheckExact(given) || (PyODict_CheckExact(given) && PyObject_HasAttrString(given, "kind") == 0);
}

}  // namespace

Form::Form(const std::vector<std::pair<py::object, Shape>>& parts, bool named) : named_(named) {
  for (const auto& [name, shape] : parts) {
    int64_t size = 1;
    for (const int64_t length : shape) size *= length;
    parts_.push_back({name, shape, size});
  }
}

Form::Read Form::read(py::handle given, int64_t size, memory::Arrays& arrays, Update& update) const {
  PyObject* const from = given.ptr();
  const bool by_name = named_ && is_plain_dict(from), in_order = PyList_CheckExact(from) || PyTuple_CheckExact(from);
  if (!by_name && !in_order) {
    const float* const data = arrays.add(given, &size, 1);
    if (data == nullptr) return Read::kNo;
    update.add(data, size, kFloat32);
    return Read::kVector;
  }
  const auto count = static_cast<Py_ssize_t>(parts_.size());
  if (count == 0 || (by_name ? PyDict_Size(from) : PySequence_Fast_GET_SIZE(from)) != count) return Read::kNo;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Part& part = parts_[static_cast<size_t>(i)];
    // The reference is kept: hashing a name or reading an array may run Python code that changes the update.
    PyObject* found = nullptr;
    if (by_name) {
      found = PyDict_GetItemWithError(from, part.name.ptr());
    } else if (i < PySequence_Fast_GET_SIZE(from)) {
      found = PySequence_Fast_GET_ITEM(from, i);
    }
    const auto one = py::reinterpret_borrow<py::object>(found);
    if (!one) {
      PyErr_Clear();
      return Read::kNo;
    }
    const float* const data = arrays.add(one, part.shape.data(), static_cast<int32_t>(part.shape.size()));
    if (data == nullptr) return Read::kNo;
    update.add(data, part.size, kFloat32);
  }
  return Read::kArrays;
}

}  // namespace fastagg::serving
