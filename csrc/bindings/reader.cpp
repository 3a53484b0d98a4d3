#include "reader.h"

#include <algorithm>

#include "host.h"

namespace fastagg::bindings {
namespace {

// A plain dict, or an OrderedDict (the type of state_dict()) without an attribute `kind` that describes it further.
bool is_plain_dict(PyObject* given) {
  return PyDict_CheckExact(given) || (PyODict_CheckExact(given) && PyObject_HasAttrString(given, "kind") == 0);
}

bool is_whole(ArrayRole role) { return role == ArrayRole::kCounter || role == ArrayRole::kCount; }

}  // namespace

Reader::Reader(const std::vector<std::tuple<py::object, Shape, ArrayRole>>& parts, bool named, double limit,
               int64_t size)
    : size_(size), named_(named) {
  rules_.limit = limit;
  int64_t counters = 0;
  for (const auto& [name, shape, role] : parts) {
    int64_t count = 1;
    for (const int64_t length : shape) count *= length;
    parts_.push_back({name, shape, count, role});
    int64_t& end = is_whole(role) ? counters : statistics_;
    if (role == ArrayRole::kVariance) rules_.variances.emplace_back(end, end + count);
    if (role == ArrayRole::kCount) rules_.counts.emplace_back(end, end + count);
    parameters_ += role == ArrayRole::kParameter;
    if (role != ArrayRole::kParameter) end += count;
  }
}

Reader::Found Reader::read(py::handle given, Arrays& arrays, engine::Arrival& arrival) const {
  PyObject* const from = given.ptr();
  const bool by_name = named_ && is_plain_dict(from), in_order = PyList_CheckExact(from) || PyTuple_CheckExact(from);
  if (!by_name && !in_order) {
    const void* const data = arrays.add(given, Element::kFloat32, &size_, 1);
    if (data == nullptr) return Found::kNo;
    arrival.update.add(data, size_, kFloat32);
    return Found::kVector;
  }
  const auto count = static_cast<Py_ssize_t>(parts_.size());
  const Py_ssize_t held = by_name ? PyDict_Size(from) : PySequence_Fast_GET_SIZE(from);
  if (count == 0 || (held != count && held != parameters_)) return Found::kNo;
  std::vector<std::pair<const void*, const Part*>> reported;
  Py_ssize_t place = 0;
  for (const Part& part : parts_) {
    const bool is_parameter = part.role == ArrayRole::kParameter;
    if (held != count && !is_parameter) continue;  // statistics may be left out, all of them
    // The reference is kept: hashing a name or reading an array may run Python code that changes the update.
    const py::object one = by_name ? item_of(given, part.name) : item_at(given, place++);
    if (!one) return Found::kNo;
    const void* const data = arrays.add(one, is_whole(part.role) ? Element::kInt64 : Element::kFloat32,
                                        part.shape.data(), static_cast<int32_t>(part.shape.size()));
    if (data == nullptr) return Found::kNo;
    if (is_parameter) {
      arrival.update.add(data, part.size, kFloat32);
    } else {
      reported.emplace_back(data, &part);
    }
  }
  if (reported.empty()) return Found::kArrays;
  auto copies = std::make_shared<engine::Reported>();
  copies->size = statistics_;
  copies->values = store::new_vector(statistics_);
  float* value = copies->values.data;
  for (const auto& [data, part] : reported) {
    if (is_whole(part->role)) {
      const auto* numbers = static_cast<const int64_t*>(data);
      copies->counters.insert(copies->counters.end(), numbers, numbers + part->size);
    } else {
      value = std::copy_n(static_cast<const float*>(data), part->size, value);
    }
  }
  if (!engine::fits(*copies, rules_)) return Found::kNo;
  arrival.reported = std::move(copies);
  return Found::kArrays;
}

}  // namespace fastagg::bindings
