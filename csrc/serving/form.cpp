#include "form.h"

namespace fastagg::serving {
namespace {

// A plain dict, or an OrderedDict (the type of state_dict()) without an attribute `kind` that describes it further.
bool is_plain_dict(PyObject* given) {
  return PyDict_CheckExact(given) || (PyODict_CheckExact(given) && PyObject_HasAttrString(given, "kind") == 0);
}

}  // namespace

Form::Form(const std::vector<std::tuple<py::object, Shape, ArrayRole>>& parts, bool named, double limit)
    : named_(named), limit_(limit) {
  for (const auto& [name, shape, role] : parts) {
    int64_t size = 1;
    for (const int64_t length : shape) size *= length;
    parts_.push_back({name, shape, size, role});
    parameters_ += role == ArrayRole::kParameter;
  }
}

Form::Read Form::read(py::handle given, int64_t size, memory::Arrays& arrays, Update& update,
                      Reported& reported) const {
  PyObject* const from = given.ptr();
  const bool by_name = named_ && is_plain_dict(from), in_order = PyList_CheckExact(from) || PyTuple_CheckExact(from);
  if (!by_name && !in_order) {
    const void* const data = arrays.add(given, memory::Element::kFloat32, &size, 1);
    if (data == nullptr) return Read::kNo;
    update.add(data, size, kFloat32);
    return Read::kVector;
  }
  const auto count = static_cast<Py_ssize_t>(parts_.size());
  const Py_ssize_t held = by_name ? PyDict_Size(from) : PySequence_Fast_GET_SIZE(from);
  if (count == 0 || (held != count && held != parameters_)) return Read::kNo;
  Py_ssize_t place = 0;
  for (const Part& part : parts_) {
    const bool is_parameter = part.role == ArrayRole::kParameter;
    if (held != count && !is_parameter) continue;  // statistics may be left out, all of them
    // The reference is kept: hashing a name or reading an array may run Python code that changes the update.
    PyObject* found = nullptr;
    if (by_name) {
      found = PyDict_GetItemWithError(from, part.name.ptr());
    } else if (place < PySequence_Fast_GET_SIZE(from)) {
      found = PySequence_Fast_GET_ITEM(from, place++);
    }
    const auto one = py::reinterpret_borrow<py::object>(found);
    if (!one) {
      PyErr_Clear();
      return Read::kNo;
    }
    const bool whole = part.role == ArrayRole::kCounter || part.role == ArrayRole::kCount;
    const void* const data = arrays.add(one, whole ? memory::Element::kInt64 : memory::Element::kFloat32,
                                        part.shape.data(), static_cast<int32_t>(part.shape.size()));
    if (data == nullptr) return Read::kNo;
    if (is_parameter) {
      update.add(data, part.size, kFloat32);
    } else {
      reported.add(part.role, data, part.size);
    }
  }
  return reported.given() && !reported.fits(limit_) ? Read::kNo : Read::kArrays;
}

}  // namespace fastagg::serving
