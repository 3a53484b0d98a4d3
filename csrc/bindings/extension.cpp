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

// Holds the value of a Python attribute that the engine's commit exchanges (SwapCell in fastagg/storage/cell.py). A
// reader takes a reference to the value before the value can be released.
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

// Returns the cell of an object's attribute. Throws Refusal, kSetting, if the attribute is not a SwapCell.
py::object cell_of(const py::object& object, const py::object& name) {
  const py::object own = py::getattr(object, "__dict__", py::none());
  if (PyDict_Check(own.ptr())) {
    py::object cell = item_of(own, py::str("_{}_cell").format(name));
    if (cell && py::isinstance<Cell>(cell)) return cell;
  }
  throw Refusal(Why::kSetting, py::cast<std::string>(py::str(py::type::handle_of(object))) + ": its state '" +
                                   py::cast<std::string>(py::str(name)) +
                                   "' is no SwapCell (fastagg.storage.cell), or was not set before");
}

// The changes that Python has prepared in the list `moves` (extension.h describes moves). `finish` is None, or a Python
// function that completes the next model and may append moves.
class PointerMoves : public engine::Change {
 public:
  explicit PointerMoves(py::object moves, py::object finish = py::none())
      : moves_(owner_of(std::move(moves))), finish_(owner_of(std::move(finish))) {
    find();
  }
  ~PointerMoves() override {
    if (Py_IsInitialized() == 0) {
      in_.release();  // Python has ended, so its objects no longer exist
      return;
    }
    const GilHolder held;
    release();
  }

  void finish(const store::Vector& model, int64_t size) override {
    const GilHolder held;
    py::handle(object_of(finish_))(tensor_of(model, size));
    release();
    in_ = std::make_unique<std::vector<py::object>>();
    find();  // `finish` may have added moves
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
      const py::object act = move[0];
      const auto at = py::cast<py::ssize_t>(move[1]);
      if (!py::isinstance<py::array_t<int64_t>>(act))
        throw Refusal(Why::kSetting, "a move of an item: expected a NumPy array of int64");
      auto vector = py::reinterpret_borrow<py::array_t<int64_t>>(act);
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
    // Entering an object's critical section waits for readers that have read a pointer but hold no reference yet.
    for (const py::object& object : *in) const py::scoped_critical_section alone(object);
    for (const auto& [place, value] : let_go) Py_XDECREF(static_cast<PyObject*>(value));
  }

  store::Owner moves_, finish_;
  std::unique_ptr<std::vector<py::object>> in_ =
      std::make_unique<std::vector<py::object>>();  // the cells and arrays that are changed
};

// The result of the Python method `prepare`.
struct PreparedFindings : Findings {
  py::object pieces = py::none();  // the vector to step along instead of the update, or None
  py::object moves = py::none(), finish = py::none();
};

py::object tensor_or_none(const store::Vector& vector, int64_t size) {
  return vector ? tensor_of(vector, size) : py::none();
}

// Returns the Python object (a Pieces) that owns an update. If there is no such object, returns the update's tensors.
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
  PythonExtension(py::object object, const Callbacks& asked, int64_t size)
      : object_(owner_of(std::move(object))), size_(size) {
    asks = asked;
  }

  py::handle object() const { return object_of(object_); }

  Findings prepare(Question question) override {
    const GilHolder held;
    const py::object answer = call("prepare")(std::move(question));
    if (answer.is_none()) return {};
    auto& findings = py::cast<PreparedFindings&>(answer);
    findings.finishes = !findings.finish.is_none();
    if (!findings.pieces.is_none()) findings.update = update_of(findings.pieces.attr("native"));
    findings.owner = owner_of(findings.pieces);
    if (findings.finishes || !findings.moves.is_none())
      findings.change = std::make_unique<PointerMoves>(findings.moves, findings.finish);
    return static_cast<Findings&&>(findings);
  }

  std::optional<double> weight(int64_t delay) override {
    const GilHolder held;
    return py::cast<std::optional<double>>(call("weight")(delay));
  }

  double rate(double lr, const std::vector<int64_t>& delays) override {
    const GilHolder held;
    return py::cast<double>(call("rate")(lr, delays));
  }

  StepResult step(const store::Vector& direction, const store::Vector& model, double lr, int64_t round) override {
    const GilHolder held;
    const py::tuple stepped = call("step")(tensor_of(direction, size_), tensor_of(model, size_), lr, round);
    return {vector_of(stepped[0]), std::make_unique<PointerMoves>(stepped[1])};
  }

  std::unique_ptr<engine::Change> statistics(const std::vector<engine::Statistics>& updates,
                                             const std::vector<double>& shares, const char* outcome) override {
    const GilHolder held;
    py::list all;
    for (const engine::Statistics& update : updates) {
      const py::object sent = update.extra != nullptr ? extra_of(update.extra)
                                                      : py::cast(update.reported, py::return_value_policy::reference);
      all.append(py::make_tuple(sent, update.share, update.gain));
    }
    py::object next = call("statistics")(all, shares, outcome);
    if (next.is_none()) return nullptr;
    auto change = std::make_unique<PointerMoves>(py::list(py::make_tuple(py::make_tuple(object(), "held", next))));
    change->state = owner_of(std::move(next));
    return change;
  }

  engine::Bounds bounds(const store::Vector& model, const engine::OptimizerState& optimizer) override {
    const GilHolder held;
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
  py::dict moments;
  for (const auto& moment : optimizer.moments()) {
    const bool bytes = optimizer.settings.coded && std::string_view(moment.name) != "units";
    moments[moment.name] = bytes ? tensor_of(moment.data.owner, moment.data.data, moment.nbytes, ElementType::kBytes)
                                 : tensor_of(moment.data, moment.nbytes / static_cast<int64_t>(sizeof(float)));
  }
  return moments;
}

std::shared_ptr<Extension> extension_of(py::object object, const Extension::Callbacks& asks, int64_t size) {
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
  py::class_<engine::ReportedStatistics, std::shared_ptr<engine::ReportedStatistics>>(m, "Reported")
      .def_property_readonly(
          "values",
          [](const engine::ReportedStatistics& reported) { return tensor_or_none(reported.values, reported.size); })
      .def_readonly("counters", &engine::ReportedStatistics::counters);
  // Functions make the objects of each answer, because pybind11's constructors end the process if no memory is left.
  m.def(
      "reported",
      [](const py::object& values, std::vector<int64_t> counters) {
        auto made = std::make_shared<engine::ReportedStatistics>();
        made->values = vector_of(values);
        made->size = values.is_none() ? 0 : py::cast<int64_t>(values.attr("numel")());
        made->counters = std::move(counters);
        return made;
      },
      by_name, arg("values"), arg("counters"));
  py::class_<Cell>(m, "Cell").def(py::init<>()).def_property("value", &value_of, &set_value);
  py::class_<PreparedFindings>(m, "Findings")
      .def_readwrite("norm", &PreparedFindings::norm)
      .def_readwrite("weight", &PreparedFindings::weight)
      .def_readwrite("share", &PreparedFindings::share)
      .def_readwrite("reported_norm", &PreparedFindings::reported_norm)
      .def_readwrite("reported_weight", &PreparedFindings::reported_weight)
      .def_readwrite("drops", &PreparedFindings::drops)
      .def_readwrite("waits", &PreparedFindings::waits)
      .def_readwrite("gain", &PreparedFindings::gain)
      .def_readwrite("next_steps", &PreparedFindings::next_steps)
      .def_readwrite("update", &PreparedFindings::pieces)
      .def_readwrite("moves", &PreparedFindings::moves)
      .def_readwrite("finish", &PreparedFindings::finish);
  m.def("findings", [] { return std::make_unique<PreparedFindings>(); });
  // Calls `act`, a function of this module. If `act` succeeds, then makes the moves. No signal handler runs in between.
  m.def("moving", [](py::object moves, const py::object& act, const py::args& arguments, const py::kwargs& named) {
    PointerMoves made(std::move(moves));
    act(*arguments, **named);
    made.commit();
  });
  const auto vector = [](const store::Vector Question::* which) {
    return [which](const Question& question) { return tensor_or_none(question.*which, question.update.size); };
  };
  py::class_<Question>(m, "Question")
      .def_property_readonly("client", [](const Question& question) { return to_python(question.client); })
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
      .def_property_readonly(
          "control", [](const Question& question) { return tensor_or_none(question.control, question.control_size); })
      // Returns |d|^2 for d = model - kept, |update|^2, and the inner product of d and update (0 if `inner` is false).
      .def("distances",
           [](const Question& question, bool inner) {
             const py::gil_scoped_release released;
             const cpu::Distances distances =
                 cpu::distances(question.update, question.model.data, question.kept.data, inner);
             return std::make_tuple(distances.moved, distances.update, distances.inner);
           })
      .def_property_readonly("has_base", [](const Question& question) { return static_cast<bool>(question.kept); })
      .def_property_readonly("reported",
                             [](const Question& question) {
                               return std::const_pointer_cast<engine::ReportedStatistics>(question.reported);
                             })
      .def_property_readonly("extra", [](const Question& question) { return extra_of(question.extra.get()); });
}

}  // namespace fastagg::bindings
