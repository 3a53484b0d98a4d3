#include "records.h"

#include <pybind11/critical_section.h>
#include <structmember.h>  // declares T_OBJECT and other types of members for Python 3.11

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <new>
#include <utility>

#include "arrays.h"
#include "host.h"

namespace fastagg::bindings {
namespace {

PyTypeObject* task_type = nullptr;

PyObject* number_or_none(double value) { return std::isnan(value) ? Py_NewRef(Py_None) : PyFloat_FromDouble(value); }
PyObject* number_or_none(int64_t value) { return value == 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(value); }

void release(std::initializer_list<PyObject*> objects) {
  for (PyObject* object : objects) Py_XDECREF(object);
}

void free_object(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// -- receipts

ReceiptObject* receipt_of(PyObject* self) { return reinterpret_cast<ReceiptObject*>(self); }

void free_receipt(PyObject* self) {
  const ReceiptObject* const receipt = receipt_of(self);
  release({receipt->client, receipt->journal});
  free_object(self);
}

PyObject* step_size_of(PyObject* self, void*) { return number_or_none(receipt_of(self)->value.step_size); }
PyObject* task_named(PyObject* self, void*) { return number_or_none(receipt_of(self)->value.task); }

PyObject* durable_of(PyObject* self, void*) {
  const ReceiptObject* const receipt = receipt_of(self);
  return PyBool_FromLong(receipt->log != nullptr && receipt->value.sequence > 0 &&
                         receipt->log->durable >= receipt->value.sequence);
}

// Returns the digest of the log up to the answer's record, in hexadecimal. Returns None if there is no record, if the
// record is not on the disk yet, or if the journal no longer has the record's digest.
PyObject* digest_of(PyObject* self, void*) {
  const ReceiptObject* const receipt = receipt_of(self);
  if (receipt->log == nullptr || receipt->value.sequence == 0) Py_RETURN_NONE;
  const std::optional<Digest> digest = receipt->log->digest(receipt->value.sequence);
  if (!digest) Py_RETURN_NONE;
  char text[2 * sizeof(Digest) + 1];
  for (size_t i = 0; i < digest->size(); ++i) std::snprintf(text + 2 * i, 3, "%02x", (*digest)[i]);
  return PyUnicode_FromString(text);
}

// _fill(client, applied, version, delay, step_size, norm, weight) sets these fields of a receipt.
PyObject* fill_receipt(PyObject* self, PyObject* args) {
  return guarded([&] {
    using Given = std::tuple<py::object, bool, int64_t, int64_t, std::optional<double>, double, double>;
    auto [client, applied, version, delay, step_size, norm, weight] = py::cast<Given>(py::handle(args));
    const py::scoped_critical_section alone(self);
    ReceiptObject& receipt = *receipt_of(self);
    Py_XSETREF(receipt.client, client.release().ptr());
    receipt.value.applied = applied, receipt.value.version = version, receipt.value.delay = delay;
    receipt.value.step_size = step_size.value_or(std::nan(""));
    receipt.value.norm = norm, receipt.value.weight = weight;
    return Py_NewRef(Py_None);
  });
}

constexpr Py_ssize_t kValue = offsetof(ReceiptObject, value);
PyMemberDef receipt_members[] = {
    {"client", T_OBJECT, offsetof(ReceiptObject, client), READONLY, nullptr},
    {"applied", T_BOOL, kValue + offsetof(engine::Receipt, applied), READONLY, nullptr},
    {"version", T_LONGLONG, kValue + offsetof(engine::Receipt, version), READONLY, nullptr},
    {"delay", T_LONGLONG, kValue + offsetof(engine::Receipt, delay), READONLY, nullptr},
    {"update_norm", T_DOUBLE, kValue + offsetof(engine::Receipt, norm), READONLY, nullptr},
    {"weight", T_DOUBLE, kValue + offsetof(engine::Receipt, weight), READONLY, nullptr},
    {"sequence", T_ULONGLONG, kValue + offsetof(engine::Receipt, sequence), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef receipt_properties[] = {{"step_size", step_size_of, nullptr, nullptr, nullptr},
                                    {"task", task_named, nullptr, nullptr, nullptr},
                                    {"durable", durable_of, nullptr, nullptr, nullptr},
                                    {"digest", digest_of, nullptr, nullptr, nullptr},
                                    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef receipt_methods[] = {{"_fill", fill_receipt, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyType_Slot receipt_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_receipt)},
                               {Py_tp_members, receipt_members},
                               {Py_tp_getset, receipt_properties},
                               {Py_tp_methods, receipt_methods},
                               {0, nullptr}};
PyType_Spec receipt_spec = {"fastagg._native.Receipt", sizeof(ReceiptObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, receipt_slots};

// -- tasks

TaskObject* task_at(PyObject* self) { return reinterpret_cast<TaskObject*>(self); }

void free_task(PyObject* self) {
  TaskObject* const task = task_at(self);
  release({task->client, task->control, task->layout, task->flat, task->params, task->views});
  task->value.~Task();
  free_object(self);
}

PyObject* new_task(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self != nullptr) new (&task_at(self)->value) engine::Task();
  return self;
}

PyObject* id_of(PyObject* self, void*) { return number_or_none(task_at(self)->value.id); }
PyObject* local_steps_of(PyObject* self, void*) { return number_or_none(int64_t{task_at(self)->value.local_steps}); }

PyObject* incarnation_of(PyObject* self, void*) {
  const TaskObject* const task = task_at(self);
  return task->has_incarnation ? PyLong_FromUnsignedLongLong(task->value.incarnation) : Py_NewRef(Py_None);
}

PyObject* encoded_of(PyObject* self, void*) {
  return guarded([&] { return py::cast(task_at(self)->value.encoded).release().ptr(); });
}

PyObject* state_of(PyObject* self, void*) {
  PyObject* const state = object_of(task_at(self)->value.state);
  return Py_NewRef(state == nullptr ? Py_None : state);
}

PyObject* flat_of(PyObject* self, void*) {
  TaskObject* const task = task_at(self);
  const py::scoped_critical_section alone(self);
  if (task->flat == nullptr) {
    if (!task->value.model) return Py_NewRef(Py_None);
    PyObject* const made = guarded([&] { return tensor_of(task->value.model, task->size).release().ptr(); });
    if (made == nullptr) return nullptr;
    if (task->flat != nullptr) {  // another thread has set the tensor first
      Py_DECREF(made);
    } else {
      task->flat = made;
    }
  }
  return Py_NewRef(task->flat);
}

// _fill(client, version, local_steps, control, layout, flat, state, incarnation, id, encoded) sets a task's fields.
PyObject* fill_task(PyObject* self, PyObject* args) {
  return guarded([&] {
    using Given =
        std::tuple<py::object, int64_t, std::optional<int32_t>, py::object, py::object, py::object, py::object,
                   std::optional<uint64_t>, std::optional<int64_t>, std::shared_ptr<store::Encoded>>;
    auto [client, version, steps, control, layout, flat, state, incarnation, id, encoded] =
        py::cast<Given>(py::handle(args));
    TaskObject& task = *task_at(self);
    Py_XSETREF(task.client, client.release().ptr());
    Py_XSETREF(task.control, control.release().ptr());
    Py_XSETREF(task.layout, layout.release().ptr());
    Py_XSETREF(task.flat, flat.release().ptr());
    task.value = {{},
                  version,
                  steps.value_or(0),
                  incarnation.value_or(0),
                  id.value_or(0),
                  {},
                  std::move(encoded),
                  owner_of(std::move(state))};
    task.has_incarnation = incarnation.has_value();
    return Py_NewRef(Py_None);
  });
}

PyMemberDef task_members[] = {
    {"client", T_OBJECT, offsetof(TaskObject, client), READONLY, nullptr},
    {"version", T_LONGLONG, offsetof(TaskObject, value) + offsetof(engine::Task, version), READONLY, nullptr},
    {"control", T_OBJECT, offsetof(TaskObject, control), READONLY, nullptr},
    {"_layout", T_OBJECT, offsetof(TaskObject, layout), READONLY, nullptr},
    {"_params", T_OBJECT, offsetof(TaskObject, params), 0, nullptr},
    {"_views", T_OBJECT, offsetof(TaskObject, views), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef task_properties[] = {{"id", id_of, nullptr, nullptr, nullptr},
                                 {"local_steps", local_steps_of, nullptr, nullptr, nullptr},
                                 {"incarnation", incarnation_of, nullptr, nullptr, nullptr},
                                 {"flat", flat_of, nullptr, nullptr, nullptr},
                                 {"_state", state_of, nullptr, nullptr, nullptr},
                                 {"_encoded", encoded_of, nullptr, nullptr, nullptr},
                                 {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef task_methods[] = {{"_fill", fill_task, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyType_Slot task_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_task)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(free_task)},
                            {Py_tp_members, task_members},
                            {Py_tp_getset, task_properties},
                            {Py_tp_methods, task_methods},
                            {0, nullptr}};
PyType_Spec task_spec = {"fastagg._native.Task", sizeof(TaskObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                         task_slots};

py::object type_of(PyType_Spec& spec) {
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(type);
}

}  // namespace

TaskObject* task_of(py::handle object) {
  return PyObject_TypeCheck(object.ptr(), task_type) ? task_at(object.ptr()) : nullptr;
}

void bind_records(py::module_& m) {
  m.attr("Receipt") = type_of(receipt_spec);
  py::object task = type_of(task_spec);
  task_type = reinterpret_cast<PyTypeObject*>(task.ptr());  // the module keeps the type alive
  m.attr("Task") = std::move(task);
}

}  // namespace fastagg::bindings
