// Receipts and tasks are Python objects that contain the engine's own structs. One of each is made for every answer. So
// the objects are made without calling their class, and a field becomes a Python number only when it is read.
// fastagg.Receipt and fastagg.Dispatch derive from these types and add everything else.
#pragma once

#include "../engine/answer.h"
#include "../engine/engine.h"
#include "python.h"

namespace fastagg::bindings {

namespace py = pybind11;

struct ReceiptObject {
  PyObject_HEAD PyObject* client;
  PyObject* journal;  // owns `log`; null: there is no log
  log::Journal* log;
  engine::Receipt value;
};

struct TaskObject {
  PyObject_HEAD PyObject* client;
  PyObject* control;
  PyObject* layout;
  PyObject* flat;  // the model's vector as a tensor, once it was read
  PyObject* params;
  PyObject* views;
  engine::Task value;  // `value.state` is fastagg's Statistics or a ModelState; id 0: unknown
  int64_t size;
  bool has_incarnation;
};

// Adds the types to the module. fastagg's classes derive from them.
void bind_records(py::module_& m);

// Makes an object of a class that derives from the type. The object's fields are empty.
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
