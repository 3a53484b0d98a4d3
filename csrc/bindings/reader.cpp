#include "reader.h"

#include <algorithm>

#include "host.h"

namespace fastagg::bindings {
namespace {

// Whether the object is a dict, or an OrderedDict without an attribute `kind`. state_dict() returns an OrderedDict.
bool is_plain_dict(PyObject* object) {
  return PyDict_CheckExact(object) || (PyODict_CheckExact(object) && PyObject_HasAttrString(object, "kind") == 0);
}

bool is_whole(ArrayRole role) { return role == ArrayRole::kCounter || role == ArrayRole::kCount; }

}  // namespace

UpdateReader::UpdateReader(const std::vector<std::tuple<py::object, ShapeVector, ArrayRole>>& parts, bool named,
                           py::object whole, double limit, int64_t size)
    : size_(size), named_(named), whole_(std::move(whole)) {
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
  all_statistics_ = {py::none(), {statistics_}, statistics_, ArrayRole::kStatistic};
}

// Reads a tuple (parameters, statistics, counters). Returns false if the tuple does not fit this model.
bool UpdateReader::read_whole(py::handle model, Arrays& arrays, engine::Answer& answer, Places& statistics) const {
  const void* const flat = arrays.add(PyTuple_GET_ITEM(model.ptr(), 0), ElementType::kFloat32, &size_, 1);
  if (flat == nullptr || parts_.empty()) return false;
  answer.update.add(flat, size_, kFloat32);
  if (statistics_ > 0) {
    const void* const values = arrays.add(PyTuple_GET_ITEM(model.ptr(), 1), ElementType::kFloat32, &statistics_, 1);
    if (values == nullptr) return false;
    statistics.emplace_back(values, &all_statistics_);
  }
  const py::handle counters = PyTuple_GET_ITEM(model.ptr(), 2);
  if (!PyList_CheckExact(counters.ptr())) return false;
  Py_ssize_t place = 0;
  for (const ModelPart& part : parts_) {
    if (!is_whole(part.role)) continue;
    const py::object counter = item_at(counters, place++);
    if (!counter) return false;
    const void* const data =
        arrays.add(counter, ElementType::kInt64, part.shape.data(), static_cast<int32_t>(part.shape.size()));
    if (data == nullptr) return false;
    statistics.emplace_back(data, &part);
  }
  return place == PyList_GET_SIZE(counters.ptr());
}

// Reads a dict, list or tuple of the model's arrays. Returns false if the arrays do not fit this model.
bool UpdateReader::read_arrays(py::handle update, bool by_name, Arrays& arrays, engine::Answer& answer,
                               Places& statistics) const {
  const auto count = static_cast<Py_ssize_t>(parts_.size());
  const Py_ssize_t held = by_name ? PyDict_Size(update.ptr()) : PySequence_Fast_GET_SIZE(update.ptr());
  if (count == 0 || (held != count && held != parameters_)) return false;
  Py_ssize_t place = 0;
  for (const ModelPart& part : parts_) {
    const bool is_parameter = part.role == ArrayRole::kParameter;
    if (held != count && !is_parameter) continue;  // an update without statistics has only parameters
    const py::object array = by_name ? item_of(update, part.name) : item_at(update, place++);
    if (!array) return false;
    const void* const data = arrays.add(array, is_whole(part.role) ? ElementType::kInt64 : ElementType::kFloat32,
                                        part.shape.data(), static_cast<int32_t>(part.shape.size()));
    if (data == nullptr) return false;
    if (is_parameter) {
      answer.update.add(data, part.size, kFloat32);
    } else {
      statistics.emplace_back(data, &part);
    }
  }
  return true;
}

UpdateReader::UpdateForm UpdateReader::read(py::handle update, Arrays& arrays, engine::Answer& answer) const {
  PyObject* const from = update.ptr();
  const bool by_name = named_ && is_plain_dict(from), in_order = PyList_CheckExact(from) || PyTuple_CheckExact(from);
  const bool by_vector = reinterpret_cast<PyObject*>(Py_TYPE(from)) == whole_.ptr();
  Places reported;
  if (by_vector) {
    if (!read_whole(update, arrays, answer, reported)) return UpdateForm::kNo;
  } else if (by_name || in_order) {
    if (!read_arrays(update, by_name, arrays, answer, reported)) return UpdateForm::kNo;
  } else {
    const void* const data = arrays.add(update, ElementType::kFloat32, &size_, 1);
    if (data == nullptr) return UpdateForm::kNo;
    answer.update.add(data, size_, kFloat32);
  }
  const UpdateForm form = by_name || in_order ? UpdateForm::kArrays : UpdateForm::kVector;
  if (reported.empty()) return form;
  auto copies = std::make_shared<engine::ReportedStatistics>();
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
  if (!engine::fits(*copies, rules_)) return UpdateForm::kNo;
  answer.reported = std::move(copies);
  return form;
}

}  // namespace fastagg::bindings
