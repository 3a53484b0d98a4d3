// Binds the kernels of whole steps for fastagg/ops, which checks the tensors. Addresses and numbers are passed by name,
// so that no two can be confused. The most frequent calls do not use pybind11, because for small vectors pybind11's
// structs and keywords take three times as long as the rest of a call.
#include <array>
#include <cfloat>
#include <cmath>
#include <optional>
#include <string_view>
#include <variant>

#include "../cpu/combine.h"
#include "../cpu/cpu.h"
#include "../cpu/floats.h"
#include "../engine/on_cpu.h"
#include "../engine/optimizer.h"
#include "../engine/robust.h"
#if defined(FASTAGG_CUDA)
#include "../cuda/cuda.h"
#endif
#include "host.h"
#include "structs.h"

namespace fastagg::bindings {
namespace {

// A FieldTarget is a variable for an argument's value. An address is an integer. Places are names with variables.
using FieldTarget = std::variant<double*, float*, bool*, int64_t*, uint64_t*, py::handle*>;
using Places = std::initializer_list<std::pair<std::string_view, FieldTarget>>;

void set(double* place, PyObject* value) { *place = PyFloat_AsDouble(value); }
void set(float* place, PyObject* value) { *place = static_cast<float>(PyFloat_AsDouble(value)); }
void set(bool* place, PyObject* value) { *place = PyObject_IsTrue(value) == 1; }
void set(int64_t* place, PyObject* value) { *place = PyLong_AsLongLong(value); }
void set(uint64_t* place, PyObject* value) { *place = PyLong_AsUnsignedLongLong(value); }
void set(py::handle* place, PyObject* value) { *place = value; }

// The arguments of a call: the pieces of an update, the place where the call runs (None: the CPU), and a dict with all
// other arguments by name.
class KeywordFields {
 public:
  KeywordFields(PyObject* const* arguments, Py_ssize_t count) {
    if (count != 3 || !PyDict_CheckExact(arguments[2])) throw py::type_error("expected pieces, a place, and a dict");
    named_ = arguments[2];
    read_pieces(arguments[0]);
#if defined(FASTAGG_CUDA)
    if (arguments[1] == Py_None) return;
    where = py::cast<cuda::LaunchPlace>(py::handle(arguments[1]));
    check_launch(update);
#endif
  }

  void read(const Places& places) const {
    const auto* at = places.begin();
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t i = 0; PyDict_Next(named_, &i, &key, &value) != 0;) {
      Py_ssize_t length = 0;
      const char* const text = PyUnicode_AsUTF8AndSize(key, &length);
      const std::string_view name(text, static_cast<size_t>(length));
      size_t others = 0;  // Python usually passes names in the order of `places`, so the next name is tried first
      for (; at == places.end() || at->first != name; at = at == places.end() ? places.begin() : at + 1)
        if (++others > places.size() + 1) throw py::type_error("unknown argument '" + std::string(name) + "'");
      std::visit([value](auto place) { set(place, value); }, at->second);
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    }
  }

  Update update;
#if defined(FASTAGG_CUDA)
  std::optional<cuda::LaunchPlace> where;
#endif

 private:
  // Reads a list of (address, number of elements, dtype code).
  void read_pieces(PyObject* pieces) {
    if (!PyList_CheckExact(pieces)) throw py::type_error("expected a list of pieces");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pieces); ++i) {
      const py::object piece = item_at(pieces, i);
      unsigned long long address = 0;
      long long size = 0;
      int dtype = 0;
      if (!PyTuple_Check(piece.ptr())) throw py::type_error("expected a tuple for each piece");
      if (PyArg_ParseTuple(piece.ptr(), "KLi", &address, &size, &dtype) == 0) throw py::error_already_set();
      add_piece(update, static_cast<Address>(address), size, dtype);
    }
  }

  PyObject* named_;
};

const Rows* rows_of(py::handle rows) { return rows.ptr() == nullptr ? nullptr : py::cast<const Rows*>(rows); }

// Sets the rows of a client cache that a step uses. `read`, `write`: slots; negative: none. `terms`: null, or pairs of
// a slot and a weight. The step adds these rows times their weights.
void add_rows(Direction& direction, const Rows& rows, int64_t read, int64_t write, py::handle terms) {
  if (read >= 0) check_slot(rows, read);
  if (write >= 0) check_slot(rows, write);
  direction.row.format = rows.format;
  direction.row.read = rows.row(read);
  direction.row.write = rows.row(write);
  if (terms.ptr() == nullptr) return;
  for (const auto& [slot, weight] : py::cast<std::vector<std::pair<int64_t, float>>>(terms)) {
    check_slot(rows, slot);
    direction.sum.terms.push_back({rows.row(slot), weight});
  }
}

void step(const KeywordFields& fields) {
  const Update& update = fields.update;
  Direction direction;
  engine::OptimizerSettings settings;
  Optimizer optimizer;
  py::handle kind, rows, terms, name;
  int64_t read = -1, write = -1;
  uint64_t base = 0, acc = 0, acc_out = 0, sum = 0, client = 0, x = 0, out = 0, units = 0;
  uint64_t m = 0, v = 0, vhat = 0;
  RandomKey rounding{0, 0, engine::kServer};
  double round = 0.0;
  fields.read({{"kind", &kind},
               {"gain", &direction.gain},
               {"weight", &direction.weight},
               {"base", &base},
               {"acc", &acc},
               {"acc_out", &acc_out},
               {"scale", &direction.buffer.scale},
               {"sum", &sum},
               {"entering", &direction.sum.entering},
               {"leaving", &direction.sum.leaving},
               {"sum_scale", &direction.sum.scale},
               {"rows", &rows},
               {"read", &read},
               {"write", &write},
               {"terms", &terms},
               {"seed", &direction.row.key.seed},
               {"arrival", &direction.row.key.step},
               {"client", &client},
               {"optimizer", &name},
               {"x", &x},
               {"out", &out},
               {"m", &m},
               {"v", &v},
               {"vhat", &vhat},
               {"units", &units},
               {"moment_seed", &rounding.seed},
               {"moment_step", &rounding.step},
               {"lr", &settings.lr},
               {"beta1", &settings.beta1},
               {"beta2", &settings.beta2},
               {"eps", &settings.eps},
               {"round", &round},
               {"period", &settings.period},
               {"eps_root", &settings.eps_root},
               {"weight_decay", &settings.weight_decay},
               {"decoupled", &settings.decoupled}});
  direction.kind = static_cast<DirectionKind>(named(py::cast<std::string>(kind), kDirectionNames, "direction"));
  direction.base = at(base), direction.sum.values = at(sum);
  direction.buffer.acc = at(acc), direction.buffer.out = at(acc_out);
  direction.row.key.client = static_cast<uint32_t>(client);
  if (const Rows* const cache = rows_of(rows); cache != nullptr) add_rows(direction, *cache, read, write, terms);
  if (name.ptr() != nullptr) {
    optimizer.kind = optimizer_named(py::cast<std::string>(name));
    optimizer.hyper = engine::hyper_of(settings, settings.lr, round);
    optimizer.x = at(x), optimizer.x_out = at(out);
    optimizer.moments = engine::moments_of({at(m), at(v), at(vhat)}, at(units), update.size, rounding);
  }
  check_step(update, direction, optimizer);
#if defined(FASTAGG_CUDA)
  if (fields.where) {
    const GilRelease released;
    return cuda::step(update, direction, optimizer, *fields.where);
  }
#endif
  const GilRelease released(update.size >= kWorthReleasing);
  cpu::step(update, direction, optimizer);
}

void accumulate(const KeywordFields& fields) {
  uint64_t acc = 0, out = 0;
  double weight = 1.0;
  fields.read({{"acc", &acc}, {"weight", &weight}, {"out", &out}});
#if defined(FASTAGG_CUDA)
  if (fields.where) {
    const GilRelease released;
    return cuda::accumulate(fields.update, at(acc), weight, at(out), *fields.where);
  }
#endif
  const GilRelease released(fields.update.size >= kWorthReleasing);
  cpu::accumulate(fields.update, at(acc), static_cast<float>(weight), at(out));
}

template <void (*Act)(const KeywordFields&)>
PyObject* entry(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    const cpu::PlainFloats plain;
    Act({arguments, count});
    return Py_NewRef(Py_None);
  });
}

template <void (*Act)(const KeywordFields&)>
PyMethodDef method(const char* name) {
  auto* const result = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&entry<Act>));
  return {name, result, METH_FASTCALL, nullptr};
}

void combine(const std::vector<std::pair<const Update*, float>>& updates, const engine::RobustCombiner& rule,
             Address out) {
  std::vector<WeightedUpdate> held;
  for (const auto& [update, by] : updates) held.push_back({update, by});
  if (held.empty()) throw SettingError("combine: there is no update");
  Desks desks(held.size());
  const GilRelease released;
  for (size_t k = 0; k < held.size(); ++k) {
    const double square = cpu::sum_squares(*held[k].update), by = held[k].by;
    if (!std::isfinite(square))
      throw Refusal(Why::kNotFinite, "combine: NaN or infinity in update " + std::to_string(k));
    if (std::abs(by) > 1.0 && std::abs(by) * std::sqrt(square) > FLT_MAX)
      throw Refusal(Why::kTooLarge, "combine: update " + std::to_string(k) + " times its weight may not be finite");
  }
  engine::CpuRunner runner;
  rule.weigh(held, held.front().update->size, runner, desks.weights());
  cpu::combine(held, rule, desks, at(out));
}

}  // namespace

void bind_ops(py::module_& m) {
  using py::arg;
  static std::array<PyMethodDef, 3> methods{method<&step>("step"), method<&accumulate>("accumulate"), PyMethodDef{}};
  if (PyModule_AddFunctions(m.ptr(), methods.data()) != 0) throw py::error_already_set();
  m.attr("most_combined") = kMostCombined;
  m.def("combine", &combine, arg("updates"), arg("rule"), py::kw_only(), arg("out"));
  m.def("sum_squares", [](const Update& update) {
    const GilRelease released(update.size >= kWorthReleasing);
    return cpu::sum_squares(update);
  });
  m.def(
      "distances",
      [](const Update& update, Address x, Address base, bool inner) {
        const GilRelease released(update.size >= kWorthReleasing);
        const cpu::Distances distances = cpu::distances(update, at(x), at(base), inner);
        return std::make_tuple(distances.moved, distances.update, distances.inner);
      },
      arg("update"), py::kw_only(), arg("x"), arg("base"), arg("inner"));
}

}  // namespace fastagg::bindings
