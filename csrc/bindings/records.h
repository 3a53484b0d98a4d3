// The Python types of receipts and tasks. Each object contains the engine's own struct. To save time, the server makes
// an object without a call of its class, and a field becomes a Python object only when Python reads the field.
// fastagg.Receipt and fastagg.Dispatch derive from these types.
#pragma once

#include "../engine/answer.h"
#include "../engine/engine.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

struct ReceiptObject {
  PyObject_HEAD PyObject* client;
  PyObject* journal;  // the Python object that owns `log`; null: the server has no log
  log::Journal* log;
  engine::Receipt value;
};

struct TaskObject {
  PyObject_HEAD PyObject* client;
  PyObject* control;
  PyObject* layout;
  PyObject* flat;  // the model's vector as a tensor; null until Python reads `flat`
  PyObject* params;
  PyObject* views;
  engine::Task value;  // `value.state` owns a Statistics or ModelState of fastagg; `value.id` 0: unknown
  int64_t size;
  bool has_incarnation;
};

// Adds the types `Receipt` and `Task` to the module.
void bind_records(py::module_& m);

// Makes an object of the class `type`, which must derive from the type of `Object`. The object's fields are empty.
template <typename Object>
py::object make(PyTypeObject* type) {
  PyObject* const made = type->tp_alloc(type, 0);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}
inline ReceiptObject* receipt_in(const py::object& object) { return reinterpret_cast<ReceiptObject*>(object.ptr()); }
inline TaskObject* task_in(const py::object& object) { return reinterpret_cast<TaskObject*>(object.ptr()); }
// Returns the task in an object, or null if the object has another type.
TaskObject* task_of(py::handle object);

}  // namespace fastagg::bindings
