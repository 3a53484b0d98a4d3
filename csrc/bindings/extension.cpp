#include "extension.h"

#include <pybind11/critical_section.h>

#include <utility>

#include "../cpu/cpu.h"
#include "arrays.h"
#include "host.h"
#include "ids.h"

namespace fastagg::bindings {
namespace {

using engine::Extension;
using engine::Findings;
using engine::Question;

// A value that Python reads as an attribute (fastagg/storage/cell.py), and that a commit exchanges. Whoever reads it
// takes a reference before anybody can let it go.
struct Cell {
  Cell() = default;
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;
  ~Cell() { Py_XDECREF(value); }
  PyObject* value = nullptr;
};

py::object value_of(const py::object& cell) {
  const py::scoped_critical_section alone(cell);
  return py::reinterpret_borrow<py::object>(__atomic_load_n(&py::cast<Cell&>(cell).value, __ATOMIC_ACQUIRE));
}

void set_value(const py::object& cell, py::object value) {
  PyObject* const next = value.release().ptr();
  value = py::reinterpret_steal<py::object>(__atomic_exchange_n(&py::cast<Cell&>(cell).value, next, __ATOMIC_ACQ_REL));
  const py::scoped_critical_section alone(cell);
}

// Where that attribute of an object is.
py::object cell_of(const py::object& object, const py::object& name) {
  const py::object own = py::getattr(object, "__dict__", py::none());
  if (PyDict_Check(own.ptr())) {
    py::object found = item_of(own, py::str("_{}_cell").format(name));
    if (found && py::isinstance<Cell>(found)) return found;
  }
  throw Refusal(Why::kSetting, py::cast<std::string>(py::str(py::type::handle_of(object))) + ": its state '" +
                                   py::cast<std::string>(py::str(name)) +
                                   "' is no Swapped attribute (fastagg.storage.cell), or was not set before");
}

// What Python has prepared: (an object, the name of an attribute that is Swapped, its next value), or (a vector of
// int64, an index, its next value).
class Moves : public engine::Change {
 public:
  explicit Moves(py::object moves, py::object finish = py::none())
      : moves_(owner_of(std::move(moves))), finish_(owner_of(std::move(finish))) {
    find();
  }
  ~Moves() override {
    if (Py_IsInitialized() == 0) {
      in_.release();  // Python's objects are gone
      return;
    }
    const Holds held;
    release();
  }

  void finish(const store::Vector& model, int64_t size) override {
    const Holds held;
    py::handle(object_of(finish_))(tensor_of(model, size));
    release();
    in_ = std::make_unique<std::vector<py::object>>();
    find();  // there may be more
  }

 private:
  void find() {
    const py::handle moves(object_of(moves_));
    if (moves.is_none()) return;
    try {
      for (const py::handle move : moves) add(py::reinterpret_borrow<py::tuple>(move));
    } catch (...) {
      release();
      throw;
    }
  }
  void add(const py::tuple& move) {
    if (PyUnicode_Check(py::object(move[1]).ptr())) {
      py::object cell = cell_of(move[0], move[1]);
      const py::object value = move[2];
      pointers.emplace_back(reinterpret_cast<void**>(&py::cast<Cell&>(cell).value), nullptr);
      pointers.back().second = Py_NewRef(value.ptr());
      in_->push_back(std::move(cell));
    } else {
      const py::object given = move[0];
      const auto at = py::cast<py::ssize_t>(move[1]);
      if (!py::isinstance<py::array_t<int64_t>>(given))
        throw Refusal(Why::kSetting, "a move of an item: expected a NumPy array of int64");
      auto vector = py::reinterpret_borrow<py::array_t<int64_t>>(given);
      if (vector.ndim() != 1 || !vector.writeable() || at < 0 || at >= vector.size())
        throw Refusal(Why::kSetting, "a move of an item: no item " + std::to_string(at) + " that can be written");
      numbers.emplace_back(vector.mutable_data(at), py::cast<int64_t>(move[2]));
      in_->push_back(std::move(vector));
    }
  }
  void release() noexcept {
    const auto in = std::exchange(in_, nullptr);
    const auto let_go = std::exchange(pointers, {});
    numbers.clear();
    // whoever has read a pointer has taken a reference of his own when this is entered
    for (const py::object& one : *in) const py::scoped_critical_section alone(one);
    for (const auto& [place, value] : let_go) Py_XDECREF(static_cast<PyObject*>(value));
  }

  store::Owner moves_, finish_;
  std::unique_ptr<std::vector<py::object>> in_ = std::make_unique<std::vector<py::object>>();  // where the places are
};

// What Python returns from `prepare`.
struct Found : Findings {
  py::object pieces = py::none();  // to step along
  py::object moves = py::none(), finish = py::none();
};

py::object tensor_or_none(const store::Vector& vector, int64_t size) {
  return vector ? tensor_of(vector, size) : py::none();
}

// Pieces, or the tensors that make them up.
py::object pieces_of(const Question& asked) {
  if (PyObject* const object = object_of(asked.owner)) return py::reinterpret_borrow<py::object>(object);
  return tensors_in(asked.owner, asked.update);
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

  Findings prepare(Question question) override {
    const Holds held;
    const py::object answer = call("prepare")(std::move(question));
    if (answer.is_none()) return {};
    auto& found = py::cast<Found&>(answer);
    found.finishes = !found.finish.is_none();
    if (!found.pieces.is_none()) found.update = update_of(found.pieces.attr("native"));
    found.owner = owner_of(found.pieces);
    if (found.finishes || !found.moves.is_none()) found.change = std::make_unique<Moves>(found.moves, found.finish);
    return static_cast<Findings&&>(found);
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
                                             const std::vector<double>& shares, const char* outcome) override {
    const Holds held;
    py::list all;
    for (const engine::Statistics& one : given) {
      const py::object sent =
          one.extra != nullptr ? extra_of(one.extra) : py::cast(one.reported, py::return_value_policy::reference);
      all.append(py::make_tuple(sent, one.share, one.gain));
    }
    py::object next = call("statistics")(all, shares, outcome);
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
  py::class_<Cell>(m, "Cell").def(py::init<>()).def_property("value", &value_of, &set_value);
  py::class_<Found>(m, "Findings")
      .def_readwrite("norm", &Found::norm)
      .def_readwrite("weight", &Found::weight)
      .def_readwrite("share", &Found::share)
      .def_readwrite("reported_norm", &Found::reported_norm)
      .def_readwrite("reported_weight", &Found::reported_weight)
      .def_readwrite("drops", &Found::drops)
      .def_readwrite("waits", &Found::waits)
      .def_readwrite("gain", &Found::gain)
      .def_readwrite("next_steps", &Found::next_steps)
      .def_readwrite("update", &Found::pieces)
      .def_readwrite("moves", &Found::moves)
      .def_readwrite("finish", &Found::finish);
  m.def("findings", [] { return std::make_unique<Found>(); });
  // Calls a function of this module, and makes moves if it has not failed: no signal's handler falls between them.
  m.def("moving", [](py::object moves, const py::object& act, const py::args& given, const py::kwargs& named) {
    Moves made(std::move(moves));
    act(*given, **named);
    made.commit();
  });
  const auto vector = [](const store::Vector Question::* which) {
    return [which](const Question& one) { return tensor_or_none(one.*which, one.update.size); };
  };
  py::class_<Question>(m, "Question")
      .def_property_readonly("client", [](const Question& one) { return to_python(one.client); })
      .def_readonly("version", &Question::version)
      .def_readonly("now", &Question::now)
      .def_readonly("local_steps", &Question::local_steps)
      .def_readonly("norm", &Question::norm)
      .def_readonly("share", &Question::share)
      .def_readonly("room", &Question::room)
      .def_readonly("total", &Question::total)
      .def_property_readonly("update", &pieces_of)
      .def_property_readonly("model", vector(&Question::model))
      .def_property_readonly("kept", vector(&Question::kept))
      .def_property_readonly("control",
                             [](const Question& one) { return tensor_or_none(one.control, one.control_size); })
      // |model - kept|^2, |update|^2 and the inner product of both, on the CPU
      .def("distances",
           [](const Question& one, bool inner) {
             const py::gil_scoped_release released;
             const cpu::Distances found = cpu::distances(one.update, one.model.data, one.kept.data, inner);
             return std::make_tuple(found.moved, found.update, found.inner);
           })
      .def_property_readonly("has_base", [](const Question& one) { return static_cast<bool>(one.kept); })
      .def_property_readonly(
          "reported", [](const Question& one) { return std::const_pointer_cast<engine::Reported>(one.reported); })
      .def_property_readonly("extra", [](const Question& one) { return extra_of(one.extra.get()); });
}

}  // namespace fastagg::bindings
