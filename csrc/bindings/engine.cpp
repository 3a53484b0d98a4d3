// Binds the engine (csrc/engine) as the Python class `Engine`, for fastagg/server.
#include <utility>

#include "../engine/ordered.h"
#include "archive.h"
#include "arrays.h"
#include "extension.h"
#include "ids.h"
#include "server.h"
#include "structs.h"

namespace fastagg::bindings {
namespace {

using engine::Engine;
using py::arg;

// The context manager of Python's `with engine.reading:` and `with engine.locked:`.
struct LockBlock {
  LockBlock(std::shared_ptr<ServerObject> of, bool reads) : server(std::move(of)), held(*server, reads) {}
  std::shared_ptr<ServerObject> server;
  LockHolder held;
};

// -- functions without pybind11

template <PyObject* (*Act)(ServerObject&, PyObject* const*), Py_ssize_t Count>
PyObject* entry(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != Count) {
    PyErr_SetString(PyExc_TypeError, "a wrong number of arguments");
    return nullptr;
  }
  const PythonCall call;
  auto* const server = static_cast<std::shared_ptr<ServerObject>*>(PyCapsule_GetPointer(self, nullptr));
  return guarded([&] {
    store::keep_reserve();
    return Act(**server, args);
  });
}

py::object function_of(const std::shared_ptr<ServerObject>& server, PyMethodDef* method) {
  const py::capsule self(new std::shared_ptr<ServerObject>(server),
                         [](void* held) { delete static_cast<std::shared_ptr<ServerObject>*>(held); });
  PyObject* const made = PyCFunction_New(method, self.ptr());
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// Makes the getter of a Python property whose value is the function `Act`. Python calls `Act` without pybind11.
template <PyObject* (*Act)(ServerObject&, PyObject* const*), Py_ssize_t Count>
auto quick(const char* name) {
  auto* const function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&entry<Act, Count>));
  static PyMethodDef def{name, function, METH_FASTCALL, nullptr};
  return [](const std::shared_ptr<ServerObject>& server) { return function_of(server, &def); };
}

// Makes the getter of a Python property. The getter takes the engine's lock and returns `of(engine)`.
template <typename Of>
auto read_by(Of of) {
  return [of](ServerObject& server) { return reading(server, of); };
}

// -- settings and state

// Returns a staleness policy. `weight` and `rate` are names of formulas. "ask" means a user's own formula, which Python
// computes. `settings`: the names of the formulas' settings -> their values.
engine::Staleness staleness_of(const std::string& weight, const std::string& rate, const py::dict& settings) {
  const auto number = [&](const char* name, double otherwise) {
    return name != nullptr && settings.contains(name) ? py::cast<double>(settings[name]) : otherwise;
  };
  engine::Staleness staleness{nullptr, nullptr, {}};
  staleness.setting.threshold = number("threshold", 0.0);
  staleness.setting.lipschitz = number("lipschitz", 1.0);
  if (weight != "ask")
    visit_at(named(weight, engine::Weights{}, "weight"), engine::Weights{}, [&](auto kind) {
      using Kind = decltype(kind);
      staleness.weight = Kind::of;
      staleness.setting.a = number(Kind::kSettings[0], 0.0), staleness.setting.b = number(Kind::kSettings[1], 0.0);
    });
  if (rate != "ask")
    visit_at(named(rate, engine::Rates{}, "rate"), engine::Rates{}, [&](auto kind) { staleness.rate = kind.of; });
  return staleness;
}

std::shared_ptr<ServerObject> make_server(const engine::Settings& settings,
                                          std::shared_ptr<engine::DirectionState> direction,
                                          const engine::OptimizerSettings& optimizer, uint64_t seed,
                                          const engine::Place& place, const py::object& extension,
                                          const engine::Extension::Callbacks& asks, const py::object& flat,
                                          const py::dict& python) {
  auto server = std::make_shared<ServerObject>();
  std::shared_ptr<engine::Extension> functions;
  if (!extension.is_none()) functions = extension_of(extension, asks, settings.size);
  server->engine = std::make_shared<Engine>(settings, std::move(direction), optimizer, seed, place,
                                            std::move(functions), vector_of(flat));
  server->size = settings.size;
  server->layout = python["layout"];
  server->task_type = python["task"];
  server->receipt_type = python["receipt"];
  server->has_control = py::cast<bool>(python["control"]);
  server->device = py::cast<int32_t>(python["device"]);
  if (const py::object reader = python["reader"]; !reader.is_none()) server->reader = py::cast<UpdateReader>(reader);
  server->engine->model.state = owner_of(python["statistics"]);
  return server;
}

// Returns the current model and its statistics, both of the same version. The returned objects never change.
std::pair<store::Vector, store::Owner> current(ServerObject& server) {
  return reading(server, [](Engine& engine) {
    engine.follow();
    return std::make_pair(engine.model.share(), engine.model.state);
  });
}

// Replaces the engine of `server` by the engine of `other`. The caller holds the old engine's lock. Threads that wait
// for that lock continue with the new engine.
void adopt(ServerObject& server, ServerObject& other) {
  const std::shared_ptr<Engine> before = server.engine;
  std::atomic_store(&server.engine, other.engine);
  before->lock.retire();
}

py::list tensors_of(const ServerObject& server, const std::vector<store::Vector>& vectors) {
  py::list tensors;
  server.engine->follow();
  for (const store::Vector& vector : vectors) tensors.append(tensor_of(vector, server.size));
  return tensors;
}

// Returns the server's direction if it is an OrderedDirection, else null.
engine::OrderedDirection* ordered_of(const ServerObject& server) {
  return dynamic_cast<engine::OrderedDirection*>(server.engine->direction.get());
}

py::list waiting_of(const ServerObject& server) {
  py::list entries;
  server.engine->follow();
  const engine::OrderedDirection* const ordered = ordered_of(server);
  if (ordered == nullptr) return entries;
  for (const auto& [answer, brings] : ordered->waiting()) {
    py::dict entry;
    entry["client"] = to_python(answer.client);
    entry["gain"] = brings.gain, entry["weight"] = brings.weight;
    entry["share"] = brings.share, entry["norm"] = brings.norm;
    const engine::HeldUpdate kept{answer.update, answer.owner};
    const auto here = server.device < 0 ? kept : engine::moved(kept, *server.engine->place.memory, false);
    entry["update"] = tensors_in(here.owner, here.update, true);
    entry["reported"] =
        answer.reported ? py::cast(std::const_pointer_cast<engine::ReportedStatistics>(answer.reported)) : py::none();
    entries.append(entry);
  }
  return entries;
}

void load_waiting(ServerObject& server, const py::list& entries) {
  std::vector<engine::OrderedDirection::WaitingAnswer> all;
  for (const py::handle object : entries) {
    const auto entry = py::reinterpret_borrow<py::dict>(object);
    auto& [answer, brings] = all.emplace_back();
    answer.client = id_of(entry["client"]);
    brings.start = brings.now = server.engine->ledger.now;
    brings.gain = brings.moves = py::cast<double>(entry["gain"]), brings.weight = py::cast<double>(entry["weight"]);
    brings.share = py::cast<double>(entry["share"]), brings.norm = py::cast<double>(entry["norm"]);
    answer.update = update_of(py::object(entry["update"]).attr("native"));
    answer.owner = owner_of(entry["update"]);
    if (!entry["reported"].is_none())
      answer.reported = py::cast<std::shared_ptr<engine::ReportedStatistics>>(entry["reported"]);
  }
  if (engine::OrderedDirection* const ordered = ordered_of(server)) ordered->load(std::move(all));
}

}  // namespace

void bind_engine(py::module_& m) {
  const py::kw_only by_name;
  using engine::Settings;
  py::class_<LockBlock>(m, "Block")
      .def("__enter__", [](LockBlock& block) { block.held.enter(); })
      .def("__exit__", [](LockBlock& block, const py::args&) { block.held.leave(); });
  py::class_<engine::Staleness>(m, "Staleness")
      .def(py::init(&staleness_of), arg("weight"), arg("rate"), arg("settings"))
      .def("weight", &engine::Staleness::weight_of)
      .def("rate", &engine::Staleness::rate_of);
  m.attr("rates") = names_of(engine::Rates{});
  py::class_<engine::OptimizerSettings>(m, "Optimizer")
      .def(py::init([](const std::string& kind, std::pair<double, double> betas, const py::kwargs& fields) {
             using S = engine::OptimizerSettings;
             auto made = made_of<S>(fields, "lr", &S::lr, "eps", &S::eps, "bias_correction", &S::bias_correction,
                                    "coded", &S::coded, "eps_root", &S::eps_root, "weight_decay", &S::weight_decay,
                                    "decoupled_weight_decay", &S::decoupled, "initial", &S::initial, "period",
                                    &S::period, "look_ahead", &S::look_ahead);
             made.kind = optimizer_named(kind);
             std::tie(made.beta1, made.beta2) = betas;
             return made;
           }),
           arg("kind"), arg("betas") = std::pair(0.0, 0.0));
  using Policy = engine::Participation::Policy;
  bind_fields<Policy>(m, "Participation", "per_step", &Policy::per_step, "separation", &Policy::separation, "total",
                      &Policy::total);
  bind_fields<Settings>(m, "Settings", "size", &Settings::size, "clients", &Settings::clients, "clip_norm",
                        &Settings::clip_norm, "max_samples", &Settings::max_samples, "largest_model",
                        &Settings::largest_model, "local_steps", &Settings::local_steps, "weighs_by_samples",
                        &Settings::weighs_by_samples, "keeps_versions", &Settings::keeps_versions, "closes_early",
                        &Settings::closes_early, "folds", &Settings::folds, "staleness", &Settings::staleness,
                        "participation", &Settings::participation);
  using Callbacks = engine::Extension::Callbacks;
  bind_fields<Callbacks>(m, "Asks", "prepare", &Callbacks::prepare, "step", &Callbacks::step, "statistics",
                         &Callbacks::statistics, "bounds", &Callbacks::bounds);
  bind_numbers(m);
  const auto ledger = [](ServerObject& server) -> engine::Ledger& { return server.engine->ledger; };
  py::class_<ServerObject, std::shared_ptr<ServerObject>>(m, "Engine")
      .def(py::init(&make_server), by_name, arg("settings"), arg("direction"), arg("optimizer"), arg("seed"),
           arg("place"), arg("extension"), arg("asks"), arg("flat"), arg("python"))
      // `with engine.reading` or `with engine.locked` holds the lock for the whole block. Within the block, the thread
      // that holds the lock may read. Other calls of this thread are refused.
      .def_property_readonly(
          "reading",
          [](const std::shared_ptr<ServerObject>& server) { return std::make_unique<LockBlock>(server, true); })
      .def_property_readonly(
          "locked",
          [](const std::shared_ptr<ServerObject>& server) { return std::make_unique<LockBlock>(server, false); })
      .def_property_readonly("holds_lock", [](const ServerObject& server) { return server.now()->lock.is_mine(); })
      .def_property_readonly("callers_waiting", [](const ServerObject& server) { return server.now()->lock.waiting(); })
      .def("most_waiting", [](ServerObject& server, int64_t limit) { server.now()->lock.most_waiting = limit; })
      .def_property_readonly("dispatch", quick<dispatch, 3>("dispatch"))
      .def_property_readonly("receive", quick<take, 8>("receive"))
      .def_property_readonly("receive_many", quick<take_many, 3>("receive_many"))
      .def("close_round", &close_round, arg("if_due") = false)
      .def_property_readonly("is_due", read_by([](Engine& engine) { return engine.is_due(); }))
      .def_readwrite("by_time", &ServerObject::by_time)
      .def("hand_on", &hand_on)
      .def("forget",
           [](ServerObject& server, py::handle name, py::handle version) {
             const ClientId client = id_of(name);
             std::optional<int64_t> number;
             if (!version.is_none()) number = version_of(version, client);
             with_engine(server, [&](Engine& engine) { engine.forget(client, number); });
           })
      .def("expire",
           [](ServerObject& server, std::optional<int64_t> before) {
             return with_engine(server, [&](Engine& engine) { return engine.expire(before); });
           })
      .def_property(
          "lr", read_by([](Engine& engine) { return engine.optimizer.settings.lr; }),
          [](ServerObject& server, double lr) { with_engine(server, [&](Engine& engine) { engine.set_rate(lr); }); })
      .def("begin_incarnation", [](ServerObject& server, int64_t version,
                                   uint64_t number) { server.engine->begin_incarnation(version, number); })
      .def(
          "limit",
          [](ServerObject& server, double lease, int64_t max_delay, int64_t open_per_client, int64_t clients) {
            server.engine->limit({lease, max_delay, open_per_client, clients});
          },
          by_name, arg("lease"), arg("max_delay"), arg("open_per_client"), arg("clients"))
      .def("execute", &execute, arg("operation"), arg("body"), arg("update"))
      .def("attach",
           [](ServerObject& server, py::object journal) {
             server.log = py::cast<std::shared_ptr<log::Journal>>(journal);
             server.engine->records.attach(server.log);
             server.journal = std::move(journal);
           })
      .def("cut_rows",
           [](ServerObject& server, std::shared_ptr<store::RowCut> cut) { server.engine->cut = std::move(cut); })
      .def("watch", [](ServerObject& server, double slow,
                       py::object tell) { server.slow = slow, server.tell = std::move(tell); })
      .def("measure", [](ServerObject& server) { server.engine->measure(); })
      // Makes the current CUDA stream wait for the server's work, so that later work may read the server's memory.
      .def("follow", [](const ServerObject& server) { server.engine->follow(); })
      .def_property_readonly("flat", [](ServerObject& server) { return tensor_of(current(server).first, server.size); })
      // Returns the model's vector like `flat`, but does not mark the version as shared. Python must hold the lock when
      // it reads this property, and must release the vector before it releases the lock.
      .def_property_readonly("model",
                             [](ServerObject& server) {
                               server.engine->follow();
                               return tensor_of(server.engine->model.current, server.size);
                             })
      .def("current",
           [](ServerObject& server) {
             const auto [model, state] = current(server);
             return py::make_tuple(tensor_of(model, server.size), py::reinterpret_borrow<py::object>(object_of(state)));
           })
      .def("adopt", &adopt)
      .def_property_readonly("moments",
                             [](const ServerObject& server) {
                               server.engine->follow();
                               return moments_of(server.engine->optimizer);
                             })
      .def_property_readonly("moments_nbytes",
                             [](const ServerObject& server) { return server.engine->optimizer.nbytes(); })
      .def_property_readonly("waiting", &waiting_of)
      .def("load_waiting", &load_waiting)
      .def_property_readonly("version", read_by([](Engine& engine) { return engine.ledger.now; }))
      .def_property_readonly("misformed", read_by([](Engine& engine) { return engine.misformed; }))
      .def_property_readonly("steps", read_by([](Engine& engine) { return engine.ledger.steps; }))
      .def_property_readonly("offset", read_by([](Engine& engine) { return engine.ledger.offset; }))
      .def_property_readonly("incarnations", read_by([](Engine& engine) { return engine.ledger.incarnations.all; }))
      // The functions below use the ledger, which has the clients and tasks. Callers hold the lock, except callers of
      // `find`.
      .def(
          "find",
          [](ServerObject& server, py::handle client, py::handle version, py::handle task, py::handle offset,
             py::handle incarnation) {
            engine::Answer asked;
            asked.client = id_of(client);
            asked.version = version_of(version, asked.client);
            asked.task = task_id_of(task), asked.offset = offset_of(offset);
            asked.incarnation = incarnation_of(incarnation);
            const auto open_task = reading(server, [&](Engine& engine) { return engine.find(asked); });
            return py::make_tuple(open_task.version, open_task.id);
          },
          arg("client"), arg("version") = py::none(), arg("task") = py::none(), arg("offset") = py::none(),
          arg("incarnation") = py::none())
      .def("check_client",
           [ledger](ServerObject& server, py::handle client) {
             const ClientId id = id_of(client);
             ledger(server).roster.clients.check(id);
             return plain(client, id);
           })
      .def("owed",
           [ledger](ServerObject& server, py::handle client) {
             const engine::Ledger& of = ledger(server);
             return of.roster.owed(of.place_of(id_of(client)));
           })
      .def_property_readonly("kept",
                             [](const ServerObject& server) {
                               std::vector<store::Vector> kept;
                               for (const auto& [version, data] : server.engine->ledger.kept.all())
                                 kept.push_back(data);
                               return tensors_of(server, kept);
                             })
      .def_property_readonly(
          "held_before",
          [](const ServerObject& server) { return tensors_of(server, server.engine->model.held_before()); })
      .def_property_readonly("known", [ledger](ServerObject& server) { return ledger(server).roster.known; })
      .def_property_readonly("open_tasks",
                             [ledger](ServerObject& server) { return ledger(server).roster.tasks.count(); })
      .def_property_readonly("expired", [ledger](ServerObject& server) { return ledger(server).leases.expired; })
      .def_property_readonly("oldest_task", [ledger](ServerObject& server) { return ledger(server).leases.oldest(); })
      .def_property_readonly("ledger_nbytes", [ledger](ServerObject& server) { return ledger(server).nbytes(); })
      .def_property(
          "skew", [ledger](ServerObject& server) { return ledger(server).leases.skew; },
          [ledger](ServerObject& server, double skew) { ledger(server).leases.skew = skew; })
      .def("tasks",
           [ledger](ServerObject& server) {
             auto state = ledger(server).state();
             const bool numbered = server.engine->settings.clients >= 0;
             return saved([&](engine::Archive& archive) { state.fields(archive, numbered, server.size); });
           })
      .def("load_tasks", [ledger](ServerObject& server, const py::dict& tasks) {
        engine::Ledger::State state;
        load(tasks, [&](engine::Archive& archive) { state.fields(archive, false, server.size); });
        ledger(server).load(state);
      });
}

}  // namespace fastagg::bindings
