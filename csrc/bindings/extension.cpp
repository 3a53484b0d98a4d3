#include "extension.h"

#include <pybind11/stl.h>

#include "../cpu/cpu.h"
#include "arrays.h"
#include "host.h"
#include "ids.h"

namespace fastagg::bindings {
namespace {

using engine::Extension;
using engine::Findings;
using engine::Question;

// A value that Python keeps in an object's attributes or in a list, and the next one. It is there already, and no code
// of a user's stands before it, so exchanging both cannot fail.
struct Place {
  py::object in, key, value;  // a dict and a name, or a list and an index

  Place(py::handle object, py::object at, py::object next) : key(std::move(at)), value(std::move(next)) {
    if (!PyUnicode_Check(key.ptr())) {
      in = py::reinterpret_borrow<py::object>(object);
      if (PyList_CheckExact(in.ptr()) && py::cast<size_t>(key) < py::len(in)) return;
    } else if (Py_TYPE(object.ptr())->tp_setattro == &PyObject_GenericSetAttr) {
      const py::object own = py::getattr(py::type::handle_of(object), key, py::none());
      const bool set_by_code = Py_TYPE(own.ptr())->tp_descr_set != nullptr;  // a property, or a slot
      in = set_by_code ? py::none() : py::getattr(object, "__dict__", py::none());
      if (PyDict_CheckExact(in.ptr()) && PyDict_Contains(in.ptr(), key.ptr()) == 1) return;
    }
    throw Refusal(Why::kSetting, py::cast<std::string>(py::str(py::type::handle_of(object))) + ": its state '" +
                                     py::cast<std::string>(py::str(key)) +
                                     "' is no plain attribute that was set before, and no item of a list; the server "
                                     "sets no properties and slots, and calls no __setattr__");
  }

  void swap() noexcept {
    PyObject* before = nullptr;
    if (PyList_CheckExact(in.ptr())) {
      const Py_ssize_t at = PyLong_AsSsize_t(key.ptr());
      before = Py_NewRef(PyList_GET_ITEM(in.ptr(), at));
      PyList_SetItem(in.ptr(), at, Py_NewRef(value.ptr()));
    } else {
      before = Py_XNewRef(PyDict_GetItemWithError(in.ptr(), key.ptr()));
      if (PyDict_SetItem(in.ptr(), key.ptr(), value.ptr()) != 0) PyErr_WriteUnraisable(key.ptr());
    }
    value = py::reinterpret_steal<py::object>(before);
  }
};

// What Python has prepared.
class Moves : public engine::Change {
 public:
  explicit Moves(py::object moves, py::object finish = py::none())
      : moves_(owner_of(std::move(moves))), finish_(owner_of(std::move(finish))) {
    find();
  }
  ~Moves() override {
    if (Py_IsInitialized() == 0) {
      places_.release();  // Python's objects are gone
      return;
    }
    const Holds held;
    places_.reset();
  }

  void finish(const store::Vector& model, int64_t size) override {
    const Holds held;
    py::handle(object_of(finish_))(tensor_of(model, size));
    find();  // there may be more
  }

  // What was there before is let go with this object, when all has changed.
  void commit() noexcept override {
    const Holds held;
    for (Place& one : *places_) one.swap();
  }

 private:
  void find() {
    auto found = std::make_unique<std::vector<Place>>();
    if (const py::handle moves(object_of(moves_)); !moves.is_none())
      for (const py::handle move : moves) {
        const py::tuple parts = py::reinterpret_borrow<py::tuple>(move);
        found->emplace_back(py::object(parts[0]), parts[1], parts[2]);
      }
    places_ = std::move(found);
  }

  store::Owner moves_, finish_;
  std::unique_ptr<std::vector<Place>> places_;
};

// What Python returns from `prepare`.
struct Answered {
  std::optional<double> norm, weight, share, reported_norm;
  bool drops = false, waits = false, unclipped = false;
  int32_t next_steps = 0;
  py::object update = py::none();  // Pieces to step along
  uintptr_t verdict = 0;
  py::object moves = py::none(), finish = py::none(), owner = py::none();
};

// What `prepare` is asked, as Python's objects: it may keep them.
struct Asked {
  py::object client;
  int64_t version, now;
  int32_t local_steps;
  double norm, share;
  py::object reported, extra;
  // Python's objects of these are made when they are asked for
  Update numbers;
  store::Owner owner;
  store::Vector model, kept, control;
  int64_t size;
};

py::object tensor_or_none(const store::Vector& vector, int64_t size) {
  return vector ? tensor_of(vector, size) : py::none();
}

// Pieces, or the tensors that make them up.
py::object pieces_of(const Asked& asked) {
  if (PyObject* const object = object_of(asked.owner)) return py::reinterpret_borrow<py::object>(object);
  py::list tensors;
  for (const Piece& piece : asked.numbers.pieces)
    tensors.append(tensor_of(asked.owner, const_cast<void*>(piece.data), piece.size,
                             static_cast<Element>(static_cast<int>(piece.dtype))));
  return std::move(tensors);
}

py::object extra_of(const void* extra) {
  return extra == nullptr ? py::none()
                          : py::reinterpret_borrow<py::object>(static_cast<PyObject*>(const_cast<void*>(extra)));
}

class PythonExtension : public Extension {
 public:
  PythonExtension(py::object object, const Asks& given, int64_t size)
      : object_(owner_of(std::move(object))), size_(size) {
    asks = given;
  }

  py::handle object() const { return object_of(object_); }

  Findings prepare(const Question& question) override {
    const Holds held;
    const engine::Answer& answer = question.answer;
    Asked asked{to_python(answer.client),
                question.task.version,
                question.now,
                question.task.local_steps,
                question.norm,
                question.share,
                py::none(),
                extra_of(answer.extra.get()),
                answer.update,
                answer.copy ? answer.copy : answer.owner,
                question.model,
                question.kept,
                answer.control,
                size_};
    if (answer.reported) asked.reported = py::cast(answer.reported);
    const py::object found = call("prepare")(std::move(asked));
    if (found.is_none()) return {};
    const auto& said = py::cast<const Answered&>(found);
    Findings findings;
    findings.norm = said.norm, findings.weight = said.weight, findings.share = said.share;
    findings.reported_norm = said.reported_norm;
    findings.drops = said.drops, findings.waits = said.waits, findings.unclipped = said.unclipped;
    findings.next_steps = said.next_steps;
    findings.verdict = reinterpret_cast<const void*>(said.verdict);
    findings.finishes = !said.finish.is_none();
    if (!said.update.is_none()) findings.update = update_of(said.update.attr("native"));
    findings.owner = owner_of(py::make_tuple(said.update, said.owner));
    if (findings.finishes || !said.moves.is_none()) findings.change = std::make_unique<Moves>(said.moves, said.finish);
    return findings;
  }

  std::optional<double> weight(int64_t delay) override {
    const Holds held;
    return py::cast<std::optional<double>>(call("weight")(delay));
  }

  double rate(double lr, const std::vector<int64_t>& delays) override {
    const Holds held;
    return py::cast<double>(call("rate")(lr, delays));
  }

  Stepped step(const store::Vector& direction, const store::Vector& model, double lr, int64_t round) override {
    const Holds held;
    const py::tuple found = call("step")(tensor_of(direction, size_), tensor_of(model, size_), lr, round);
    return {vector_of(found[0]), std::make_unique<Moves>(found[1])};
  }

  std::unique_ptr<engine::Change> statistics(const std::vector<engine::Statistics>& given,
                                             const char* outcome) override {
    const Holds held;
    py::list all;
    for (const engine::Statistics& one : given) {
      if (one.extra != nullptr) {
        all.append(py::make_tuple(extra_of(one.extra), one.share));
      } else {
        all.append(py::make_tuple(py::cast(one.reported, py::return_value_policy::reference), one.share));
      }
    }
    py::object next = call("statistics")(all, outcome);
    if (next.is_none()) return nullptr;
    auto change = std::make_unique<Moves>(py::list(py::make_tuple(py::make_tuple(object(), "held", next))));
    change->state = owner_of(std::move(next));
    return change;
  }

  engine::Bounds bounds(const store::Vector& model, const engine::OptimizerState& optimizer) override {
    const Holds held;
    const auto [of_model, m, v] =
        py::cast<std::tuple<double, double, double>>(call("bounds")(tensor_of(model, size_), moments_of(optimizer)));
    return {of_model, {m, v}};
  }

 private:
  py::object call(const char* method) const { return object().attr(method); }

  store::Owner object_;
  int64_t size_;
};

}  // namespace

py::dict moments_of(const engine::OptimizerState& optimizer) {
  py::dict found;
  for (const auto& one : optimizer.moments()) {
    const bool bytes = optimizer.settings.coded && std::string_view(one.name) != "units";
    found[one.name] = bytes ? tensor_of(one.data.owner, one.data.data, one.nbytes, Element::kBytes)
                            : tensor_of(one.data, one.nbytes / static_cast<int64_t>(sizeof(float)));
  }
  return found;
}

std::shared_ptr<Extension> extension_of(py::object object, const Extension::Asks& asks, int64_t size) {
  return std::make_shared<PythonExtension>(std::move(object), asks, size);
}

py::handle python_of(const Extension& extension) { return static_cast<const PythonExtension&>(extension).object(); }

Update update_of(const py::handle& pieces) {
  Update update;
  for (const py::handle piece : pieces) {
    const auto [address, count, dtype] = py::cast<std::tuple<uintptr_t, int64_t, int>>(piece);
    update.add(reinterpret_cast<const void*>(address), count, static_cast<Dtype>(dtype));
  }
  return update;
}

void bind_extension(py::module_& m) {
  const py::kw_only by_name;
  using py::arg;
  py::class_<engine::Reported, std::shared_ptr<engine::Reported>>(m, "Reported")
      .def_property_readonly("values", [](const engine::Reported& one) { return tensor_or_none(one.values, one.size); })
      .def_readonly("counters", &engine::Reported::counters)
      .def("added", [](const engine::Reported& one, const py::object& sum, float share) {
        return tensor_or_none(engine::added(one, vector_of(sum).data, share), one.size);
      });
  // Functions make what each answer needs, because pybind11's own constructors end the process when there is no memory
  // for an object.
  m.def(
      "reported",
      [](const py::object& values, std::vector<int64_t> counters) {
        auto made = std::make_shared<engine::Reported>();
        made->values = vector_of(values);
        made->size = values.is_none() ? 0 : py::cast<int64_t>(values.attr("numel")());
        made->counters = std::move(counters);
        return made;
      },
      by_name, arg("values"), arg("counters"));
  py::class_<Answered>(m, "Findings")
      .def_readwrite("norm", &Answered::norm)
      .def_readwrite("weight", &Answered::weight)
      .def_readwrite("share", &Answered::share)
      .def_readwrite("reported_norm", &Answered::reported_norm)
      .def_readwrite("drops", &Answered::drops)
      .def_readwrite("waits", &Answered::waits)
      .def_readwrite("unclipped", &Answered::unclipped)
      .def_readwrite("next_steps", &Answered::next_steps)
      .def_readwrite("update", &Answered::update)
      .def_readwrite("verdict", &Answered::verdict)
      .def_readwrite("moves", &Answered::moves)
      .def_readwrite("finish", &Answered::finish)
      .def_readwrite("owner", &Answered::owner);
  m.def("findings", [] { return Answered(); });
  py::class_<Asked>(m, "Question")
      .def_readonly("client", &Asked::client)
      .def_readonly("version", &Asked::version)
      .def_readonly("now", &Asked::now)
      .def_readonly("local_steps", &Asked::local_steps)
      .def_readonly("norm", &Asked::norm)
      .def_readonly("share", &Asked::share)
      .def_property_readonly("update", &pieces_of)
      .def_property_readonly("model", [](const Asked& one) { return tensor_of(one.model, one.size); })
      .def_property_readonly("kept", [](const Asked& one) { return tensor_or_none(one.kept, one.size); })
      .def_property_readonly("control", [](const Asked& one) { return tensor_or_none(one.control, one.size); })
      // |model - kept|^2, |update|^2 and the inner product of both, on the CPU
      .def("distances",
           [](const Asked& one, bool inner) {
             const py::gil_scoped_release released;
             const auto* const base = static_cast<const float*>(one.kept.data);
             const cpu::Distances found =
                 cpu::distances(one.numbers, static_cast<const float*>(one.model.data), base, inner);
             return std::make_tuple(found.moved, found.update, found.inner);
           })
      .def_property_readonly("has_base", [](const Asked& one) { return static_cast<bool>(one.kept); })
      .def_readonly("reported", &Asked::reported)
      .def_readonly("extra", &Asked::extra);
}

}  // namespace fastagg::bindings
