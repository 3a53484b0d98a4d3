// Functions of Python's class `Engine` that make tasks for clients. They return the tasks' Python objects.
#include <utility>

#include "arrays.h"
#include "extension.h"
#include "ids.h"
#include "records.h"
#include "server.h"

namespace fastagg::bindings {
namespace {

py::object new_task(const ServerObject& server) {
  auto* const type = reinterpret_cast<PyTypeObject*>(server.task_type.ptr());
  py::object made = py::reinterpret_steal<py::object>(type->tp_new(type, nullptr, nullptr));
  if (!made) throw py::error_already_set();
  return made;
}

// Fills a task object. The object was allocated before the engine sent the task, because an allocation may fail.
py::object filled(ServerObject& server, py::object made, py::object client, engine::Task&& task, py::object control) {
  TaskObject* const object = task_in(made);
  object->client = client.release().ptr();
  object->layout = server.layout.inc_ref().ptr();
  object->control = control.release().ptr();
  object->value = std::move(task);
  object->size = server.size;
  object->has_incarnation = true;
  return made;
}

// Returns the control variate that is sent with a client's task, or None if the server's rule has no control variates.
py::object control_of(const ServerObject& server, const py::handle& client) {
  return server.has_control ? py::object(python_of(*server.now()->extension).attr("sent")(client)) : py::none();
}

}  // namespace

PyObject* dispatch(ServerObject& server, PyObject* const* args) {
  const ClientId client = id_of(args[0]);
  const int format = args[1] == Py_None ? engine::kAsItIs : py::cast<int>(py::handle(args[1]));
  const auto local_steps = args[2] == Py_None ? 0 : py::cast<int32_t>(py::handle(args[2]));
  close_if_due(server);
  py::object made = new_task(server), control = control_of(server, args[0]), name = plain(args[0], client);
  engine::Task task;
  {
    const GilRelease released(format != engine::kAsItIs && server.is_long());
    task = with_engine(server, [&](engine::Engine& engine) { return engine.dispatch(client, format); });
  }
  if (local_steps > 0) task.local_steps = local_steps;
  return filled(server, std::move(made), std::move(name), std::move(task), std::move(control)).release().ptr();
}

py::object hand_on(ServerObject& server, py::handle from, py::handle to, int32_t local_steps) {
  const TaskObject& of = *task_of(from);
  const ClientId first = id_of(of.client == nullptr ? Py_None : of.client), second = id_of(to);
  py::object made = new_task(server), name = plain(to, second);
  const bool by_client = of.control != nullptr && PyDict_Check(of.control);
  py::object control = by_client ? control_of(server, to) : py::reinterpret_borrow<py::object>(of.control);
  engine::Task task = with_engine(
      server, [&](engine::Engine& engine) { return engine.hand_on(first, of.value.version, of.value.id, second); });
  if (local_steps > 0) task.local_steps = local_steps;
  task.model = of.value.model, task.encoded = of.value.encoded, task.state = of.value.state;
  task_in(made)->flat = Py_XNewRef(of.flat);
  return filled(server, std::move(made), std::move(name), std::move(task), std::move(control));
}

}  // namespace fastagg::bindings
