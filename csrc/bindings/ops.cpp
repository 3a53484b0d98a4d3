// The ops that programs call in loops, for fastagg/ops: one call from Python checks the tensors and runs the kernel, or
// keeps what it has checked for later calls (`prepare`). What is not of the usual form is read, or refused by name, by
// fastagg/ops/checks.py.
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "../cpu/cpu.h"
#include "../engine/optimizer.h"
#include "../math/optimizers.h"
#if defined(FASTAGG_CUDA)
#include "../cuda/cuda.h"
#endif
#include "arrays.h"
#include "host.h"
#include "structs.h"

namespace fastagg::bindings {
namespace {

#if defined(FASTAGG_CUDA_EMULATED)
constexpr bool kEmulated = true;  // then Python decides where ops on the CPU's tensors run
#else
constexpr bool kEmulated = false;
#endif
constexpr uint32_t kServer = 0xffffffffu;  // a key that separates the rounding of moments from that of clients' rows
constexpr const char* kChecks = "fastagg.ops.checks";

// A checked call, to be made again.
struct Prepared {
  std::vector<Memo> memory;
  std::vector<py::object> owners;
  std::function<py::object()> act;
};
thread_local Prepared* preparing = nullptr;

template <typename... Each>
py::object call(const char* module, const char* name, Each&&... each) {
  return py::module_::import(module).attr(name)(std::forward<Each>(each)...);
}

[[noreturn]] void refuse_shape(const std::string& text) {
  py::set_error(py::module_::import("fastagg.errors").attr("ShapeMismatch"), text.c_str());
  throw py::error_already_set();
}

std::string text_of(py::handle object) { return py::str(object); }

// -- arguments: those that come after the last one given, and None, have their default

class Arguments {
 public:
  Arguments(PyObject* const* given, Py_ssize_t count) : given_(given), count_(count) {}
  PyObject* operator[](Py_ssize_t place) const {
    return place < count_ && given_[place] != Py_None ? given_[place] : nullptr;
  }

 private:
  PyObject* const* given_;
  Py_ssize_t count_;
};

double number(PyObject* given, double otherwise) {
  if (given == nullptr) return otherwise;
  const double found = PyFloat_AsDouble(given);
  if (found == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return found;
}

float single(PyObject* given, double otherwise) { return static_cast<float>(number(given, otherwise)); }

int64_t whole(const char* name, PyObject* given, int64_t otherwise) {
  if (given == nullptr) return otherwise;
  int overflow = 0;
  const long long found = PyLong_AsLongLongAndOverflow(given, &overflow);
  if (found == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (overflow != 0) throw Refused(std::string(name) + ": expected a number of 64 bits, got " + text_of(given));
  return found;
}

uint64_t key(const char* name, PyObject* given, uint64_t most) {
  if (given == nullptr) return 0;
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(given));
  if (!index) throw py::error_already_set();
  const unsigned long long found = PyLong_AsUnsignedLongLong(index.ptr());
  const bool outside = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (outside || found > most)
    throw Refused(std::string(name) + ": expected 0 to " + std::to_string(most) + ", got " + text_of(given));
  return found;
}

bool yes(PyObject* given) {
  const int found = given == nullptr ? 0 : PyObject_IsTrue(given);
  if (found < 0) throw py::error_already_set();
  return found != 0;
}

std::pair<PyObject*, PyObject*> two(const char* name, PyObject* given) {
  if (given == nullptr) return {nullptr, nullptr};
  if (!PyTuple_Check(given) && !PyList_Check(given)) throw py::type_error(std::string(name) + ": expected two numbers");
  if (PySequence_Fast_GET_SIZE(given) != 2) throw Refused(std::string(name) + ": expected two, got " + text_of(given));
  return {PySequence_Fast_GET_ITEM(given, 0), PySequence_Fast_GET_ITEM(given, 1)};
}

// -- tensors

enum class Road { kCpu, kCuda, kReference };

// The update of a call, and the vectors that belong to it. While it exists, the memory does.
class Given {
 public:
  explicit Given(PyObject* from) {
    if (from == nullptr) from = Py_None;
    if (read(from)) return;
    update.pieces.clear();
    update.size = 0;
    prepared_.memory.clear();
    owners_.clear();
    pieces_ = call("fastagg.storage.pieces", "as_pieces", py::handle(from));
    only_plain("update");
    update = update_of(py::cast<Pieces>(pieces_.attr("native")));
    device_ = pieces_.attr("device");
    on_host_ = py::cast<std::string>(device_.attr("type")) == "cpu";
  }

  Update update;

  // A state vector, with as many elements as the update.
  float* vector(const char* name, PyObject* tensor) {
    return static_cast<float*>(memory(name, tensor, update.size, Element::kFloat32));
  }
  float* vector_or_null(const char* name, PyObject* tensor) {
    return tensor == nullptr ? nullptr : vector(name, tensor);
  }

  void* memory(const char* name, PyObject* tensor, int64_t size, Element element) {
    if (tensor == nullptr) tensor = Py_None;
    Memory found;
    if (on_host_ && look(tensor, found) && found.on_host && found.element == element && found.dims == 1 &&
        found.size == size && found.in_order && (found.data != nullptr || size == 0)) {
      remember(name, tensor, found);
      return found.data;
    }
    const char* const type = element == Element::kFloat32 ? "float32" : "uint8";
    call(kChecks, "vector", name, py::handle(tensor), size, device(), py::module_::import("torch").attr(type));
    only_plain(name);
    const auto address = py::cast<Address>(py::handle(tensor).attr("data_ptr")());
    if (address == 0 && size > 0) throw Refused(std::string(name) + ": its memory was freed");
    return at<void>(address);
  }

  py::object device() {
    if (!device_) device_ = py::module_::import("torch").attr("device")("cpu");
    return device_;
  }

  // A tensor that was checked otherwise.
  void also(const char* name, PyObject* tensor) {
    if (preparing == nullptr) return;
    Memory found;
    if (!look(tensor, found)) only_plain(name);
    remember(name, tensor, found);
  }
  // What holds other memory.
  void keep(PyObject* owner) {
    if (preparing != nullptr) prepared_.owners.push_back(py::reinterpret_borrow<py::object>(owner));
  }

  // Refuses an output that overlaps the update. With `same` a piece may be in the output at its own place.
  void apart(const char* name, const float* out, bool same) const {
    const auto* const begin = reinterpret_cast<const char*>(out);
    const char* const end = begin + 4 * update.size;
    for (const Piece& piece : update.pieces) {
      const auto* const data = static_cast<const char*>(piece.data);
      const bool overlaps = begin < data + piece.size * (piece.dtype == kFloat32 ? 4 : 2) && data < end;
      const bool own = same && piece.dtype == kFloat32 && data == begin + 4 * piece.begin;
      if (overlaps && !own) throw Refused(std::string(name) + " overlaps the update");
    }
  }

  // Where it runs. On CUDA `where` says more, and an update of very many pieces is joined first.
  Road road(PyObject* verdict) {
    if (verdict != nullptr) call("fastagg.ops.verdict", "check_verdict", py::handle(verdict), device());
    if (on_host_ && (!kEmulated || preparing != nullptr)) return Road::kCpu;
    if (preparing != nullptr) throw Refused("prepare: for tensors on the CPU, got one on " + text_of(device()));
    const py::object place = call("fastagg.ops.place", "place", device());
    if (place.is_none()) return Road::kReference;
    const auto [device, stream] = py::cast<std::pair<int, Address>>(place);
    if (device < 0) return Road::kCpu;
#if defined(FASTAGG_CUDA)
    where.device = device;
    where.stream = at<void>(stream);
    if (verdict != nullptr)
      where.verdict = at<const cuda::Verdict>(py::cast<Address>(py::handle(verdict).attr("data_ptr")()));
    if (update.pieces.size() > cuda::kMostPieces) {
      if (!pieces_) pieces_ = call("fastagg.storage.pieces", "Pieces", py::cast(owners_));
      pieces_ = call("fastagg.ops.place", "on_device", pieces_);
      update = update_of(py::cast<Pieces>(pieces_.attr("native")));
    }
#endif
    return Road::kCuda;
  }
#if defined(FASTAGG_CUDA)
  cuda::Where where{};
#endif

  // Does it, or keeps it for later.
  template <typename Act>
  PyObject* perform(Act act) {
    if (preparing == nullptr) return act().release().ptr();
    prepared_.act = std::move(act);
    prepared_.owners.insert(prepared_.owners.end(), owners_.begin(), owners_.end());
    *std::exchange(preparing, nullptr) = std::move(prepared_);
    return Py_NewRef(Py_None);
  }

 private:
  // False: it is not of the usual form, torch tensors on the CPU that can be read as they lie.
  bool read(PyObject* from) {
    if (!PyList_CheckExact(from) && !PyTuple_CheckExact(from)) return add(from);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(from); ++i) {
      owners_.push_back(py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(from, i)));
      if (!add(owners_.back().ptr())) return false;
    }
    return true;
  }

  bool add(PyObject* piece) {
    Memory found;
    if (!look(piece, found) || !found.on_host || !found.in_order || found.element > Element::kBFloat16) return false;
    if (!is_plain(piece, found)) return false;
    update.add(found.data, found.size, static_cast<Dtype>(found.element));
    if (preparing != nullptr) prepared_.memory.emplace_back(piece, found);
    return true;
  }

  void remember(const char* name, PyObject* tensor, const Memory& found) {
    if (preparing == nullptr) return;
    if (!is_plain(tensor, found)) throw Refused(std::string(name) + ": its memory was freed");
    prepared_.memory.emplace_back(tensor, found);
  }

  // A prepared call reads its arguments anew each time, so a copy will not do.
  void only_plain(const char* name) {
    if (preparing != nullptr)
      throw Refused("prepare: " + std::string(name) +
                    ": expected contiguous torch tensors on the CPU, which each call reads in place");
  }

  py::object pieces_, device_;
  bool on_host_ = true;
  std::vector<py::object> owners_;
  Prepared prepared_;
};

void apart(const char* name, const float* a, const char* other, const float* b, int64_t size) {
  if (a != b && a < b + size && b < a + size)
    throw Refused(std::string(name) + " overlaps " + other + " without being " + other);
}

// -- optimizers

// clang-format off
enum Setting { kOptimizer, kLr, kM, kV, kVhat, kBetas, kEps, kCorrection, kUnits, kRounding, kRoot, kDecay, kApart,
               kSettings };
constexpr std::array<const char*, kSettings> kSettingNames{
    "optimizer", "lr", "m", "v", "vhat", "betas", "eps", "correction", "units", "rounding", "eps_root",
    "weight_decay", "decoupled_weight_decay"};
// clang-format on
using OptimizerSettings = std::array<PyObject*, kSettings>;

OptimizerSettings settings_of(py::handle keywords) {
  OptimizerSettings found{};
  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t place = 0; PyDict_Next(keywords.ptr(), &place, &name, &value) != 0;) {
    size_t which = 0;
    while (which < kSettings && PyUnicode_CompareWithASCIIString(name, kSettingNames[which]) != 0) ++which;
    if (which == kSettings) throw py::type_error("unexpected keyword argument " + text_of(py::repr(name)));
    found[which] = value == Py_None ? nullptr : value;
  }
  return found;
}

struct Kind {
  int place = -1;
  std::array<bool, 3> owns{};  // m, v, vhat
};

template <typename... Each>
Kind kind_of(PyObject* given, List<Each...>) {
  Kind found;
  int place = 0;
  const auto compare = [&](auto one) {
    using One = decltype(one);
    if (PyUnicode_CompareWithASCIIString(given, One::kName) == 0) found = {place, {One::kM, One::kV, One::kVhat}};
    ++place;
  };
  if (PyUnicode_Check(given)) (compare(Each{}), ...);
  if (found.place >= 0) return found;
  std::string known;
  ((known += (known.empty() ? "" : ", ") + std::string(Each::kName)), ...);
  throw Refused("unknown optimizer " + text_of(py::repr(given)) + "; known: " + known);
}

// What a round's bias correction makes of the rates (csrc/math/optimizers.h).
Hyper hyper_of(const OptimizerSettings& given) {
  const auto [first, second] = two("betas", given[kBetas]);
  const double beta1 = number(first, 0.9), beta2 = number(second, 0.99);
  const double round = number(given[kCorrection], 0.0);
  if (given[kCorrection] != nullptr && !(round > 0.0 && std::pow(beta1, round) < 1.0 && std::pow(beta2, round) < 1.0))
    throw Refused("correction: expected a round from 1 on and betas below 1, got " + text_of(given[kCorrection]));
  engine::OptimizerSettings settings;
  settings.beta1 = beta1, settings.beta2 = beta2, settings.eps = number(given[kEps], 1e-8);
  settings.eps_root = number(given[kRoot], 0.0), settings.weight_decay = number(given[kDecay], 0.0);
  settings.decoupled = given[kApart] != nullptr && PyObject_IsTrue(given[kApart]) == 1;
  return engine::hyper_of(settings, number(given[kLr], 0.0), round);
}

Optimizer optimizer_of(Given& all, PyObject* x, PyObject* target, const OptimizerSettings& given) {
  if (given[kOptimizer] == nullptr || given[kLr] == nullptr) throw py::type_error("optimizer and lr are needed");
  const Kind kind = kind_of(given[kOptimizer], Optimizers{});
  Optimizer optimizer;
  optimizer.kind = kind.place;
  const int64_t size = all.update.size;
  optimizer.x = all.vector("x", x);
  optimizer.x_out = const_cast<float*>(optimizer.x);
  if (target != x) {
    optimizer.x_out = all.vector("out", target);
    apart("out", optimizer.x_out, "x", optimizer.x, size);
  }
  PyObject* const units = given[kUnits];
  const int64_t blocks = (size + kScaleBlock - 1) / kScaleBlock;
  if (units != nullptr) {
    call(kChecks, "coded", py::handle(given[kOptimizer]), py::handle(units), blocks, all.device());
    all.also("units", units);
  }
  std::array<void*, 3> moments{};
  for (size_t i = 0; i < 3; ++i) {
    PyObject* const moment = given[kM + i];
    const char* const called = kSettingNames[kM + i];
    if ((moment != nullptr) != kind.owns[i])
      throw Refused(text_of(given[kOptimizer]) + (moment == nullptr ? " needs " : " has no ") + called);
    if (moment == nullptr) continue;
    moments[i] = units == nullptr ? all.vector(called, moment)
                                  : all.memory(called, moment, blocks * kScaleBlock, Element::kBytes);
  }
  optimizer.hyper = hyper_of(given);
  if (units == nullptr) {
    optimizer.moments.m = static_cast<float*>(moments[0]);
    optimizer.moments.v = static_cast<float*>(moments[1]);
    optimizer.moments.vhat = static_cast<float*>(moments[2]);
    return optimizer;
  }
  Moments& coded = optimizer.moments;
  coded.coded_m = static_cast<uint8_t*>(moments[0]);
  coded.coded_v = static_cast<uint8_t*>(moments[1]);
  coded.coded_vhat = static_cast<uint8_t*>(moments[2]);
  coded.units_m = at(py::cast<Address>(py::handle(units).attr("data_ptr")()));
  coded.units_v = moments[1] == nullptr ? nullptr : coded.units_m + blocks;
  const auto [seed, step] = two("rounding", given[kRounding]);
  const uint64_t any = std::numeric_limits<uint64_t>::max();
  coded.key = {key("rounding", seed, any), key("rounding", step, any), kServer};
  return optimizer;
}

// -- the ops

py::object borrowed(PyObject* object) {
  return py::reinterpret_borrow<py::object>(object == nullptr ? Py_None : object);
}

PyObject* perform_step(Given& all, Road road, Direction direction, const Optimizer& optimizer, PyObject* target) {
  check_step(all.update, direction, optimizer);
#if defined(FASTAGG_CUDA)
  if (road == Road::kCuda) {
    const Released released;
    cuda::step(all.update, direction, optimizer, all.where);
  }
#endif
  if (road == Road::kCuda) return borrowed(target).release().ptr();
  return all.perform(
      [update = std::move(all.update), direction = std::move(direction), optimizer, result = borrowed(target)] {
        if (update.size > 0) {
          const Released released(update.size >= kWorthReleasing);
          cpu::step(update, direction, optimizer);
        }
        return result;
      });
}

// step(x, update, gain, weight, acc, scale, base, out, verdict, and the optimizer's settings)
PyObject* step(const Arguments& given) {
  Given all(given[1]);
  PyObject* const x = given[0];
  PyObject* const target = given[7] == nullptr ? x : given[7];
  OptimizerSettings settings{};
  for (size_t i = 0; i < kSettings; ++i) settings[i] = given[static_cast<Py_ssize_t>(i) + 9];
  const Optimizer optimizer = optimizer_of(all, x, target, settings);
  Direction direction;
  direction.gain = number(given[2], 1.0);
  direction.weight = number(given[3], 1.0);
  direction.buffer.acc = all.vector_or_null("acc", given[4]);
  direction.buffer.scale = single(given[5], 1.0);
  direction.base = all.vector_or_null("base", given[6]);
  if (given[4] != nullptr && given[6] != nullptr)
    throw Refused("acc and base are two different directions; give one of them");
  if (given[4] != nullptr) direction.kind = kFlush;
  if (given[6] != nullptr) direction.kind = kBlend;
  const Road road = all.road(given[8]);
  if (all.update.size == 0 && preparing == nullptr) return borrowed(target).release().ptr();
  if (road == Road::kReference) return Py_NewRef(Py_NotImplemented);
  return perform_step(all, road, std::move(direction), optimizer, target);
}

py::object attribute(PyObject* of, PyObject* name) {
  PyObject* const found = PyObject_GetAttr(of, name);
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

Rows rows_of(PyObject* cache) {
  static PyObject* const name = PyUnicode_InternFromString("native");
  return *py::cast<const Rows*>(attribute(cache, name));
}

std::vector<std::pair<int64_t, float>> terms_of(PyObject* given) {
  std::vector<std::pair<int64_t, float>> found;
  if (given == nullptr || (PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) == 0)) return found;
  for (const py::handle one : py::reinterpret_borrow<py::object>(given)) {
    const auto [slot, weight] = two("terms", one.ptr());
    found.emplace_back(whole("terms", slot, -1), single(weight, 1.0));
  }
  return found;
}

// cached_step(x, update, cache, write, read, client, arrival, gain, sum, entering, leaving, sum_scale, terms, acc,
// fresh, weight, acc_scale, out, verdict, write_cache, optimizer's keywords)
PyObject* cached_step(const Arguments& given) {
  Given all(given[1]);
  const int64_t size = all.update.size;
  PyObject* const x = given[0];
  PyObject* const target = given[17] == nullptr ? x : given[17];
  Optimizer optimizer;
  if (x != nullptr) optimizer = optimizer_of(all, x, target, settings_of(given[20]));
  Direction direction;
  direction.gain = number(given[7], 1.0);
  float* const acc = all.vector_or_null("acc", given[13]);
  if (given[8] == nullptr && (given[13] == nullptr || x != nullptr)) throw Refused("sum: needed here, got None");
  Sum& sum = direction.sum;
  sum = {
      all.vector_or_null("sum", given[8]), single(given[9], 1.0), single(given[10], 1.0), single(given[11], 1.0), {}};
  if (given[8] != nullptr) all.apart("sum", sum.values, false);
  PyObject *const cache = given[2], *const other = given[19];
  const int64_t write = whole("write", given[3], -1), read = whole("read", given[4], -1);
  const auto terms = terms_of(given[12]);
  if (cache == nullptr && (write >= 0 || read >= 0 || !terms.empty()))
    throw Refused("cache: needed to write, read or add rows, got None");
  const uint64_t any = std::numeric_limits<uint64_t>::max();
  direction.row.key = {0, key("arrival", given[6], any),
                       static_cast<uint32_t>(key("client", given[5], std::numeric_limits<uint32_t>::max()))};
  if (cache != nullptr) {
    const Rows rows = rows_of(cache);
    const Rows into = other == nullptr ? rows : rows_of(other);
    all.keep(cache);
    if (other != nullptr) all.keep(other);
    if (rows.size != size)
      refuse_shape("update: expected " + std::to_string(rows.size) + " elements, as the cache's rows have, got " +
                   std::to_string(size));
    if (into.size != size || into.format != rows.format) {
      const auto kind = [](PyObject* of, int64_t d) {
        return text_of(py::handle(of).attr("format")) + " rows of " + std::to_string(d);
      };
      throw Refused("write_cache: expected " + kind(cache, size) + ", got " + kind(other, into.size));
    }
    bool there = -1 <= write && write < into.slots && -1 <= read && read < rows.slots;
    for (const auto& term : terms) there &= 0 <= term.first && term.first < rows.slots;
    if (!there) {
      std::string slots = std::to_string(write) + ", " + std::to_string(read);
      for (const auto& term : terms) slots += ", " + std::to_string(term.first);
      throw Refused("slots: expected -1.." + std::to_string(rows.slots - 1) + ", got [" + slots + "]");
    }
    direction.row.format = rows.format;
    direction.row.read = rows.row(read);
    direction.row.write = into.row(write);
    static PyObject* const seed = PyUnicode_InternFromString("seed");
    direction.row.key.seed = key("seed", attribute(cache, seed).ptr(), any);
    for (const auto& [slot, weight] : terms) sum.terms.push_back({rows.row(slot), weight});
  }
  direction.kind = acc == nullptr ? kMean : kCalibrated;
  if (acc != nullptr) {
    direction.weight = number(given[15], 1.0);
    direction.buffer = {yes(given[14]) ? nullptr : acc, acc, single(given[16], 1.0), {}};
  }
  const Road road = all.road(given[18]);
  if (size == 0 && preparing == nullptr) return borrowed(target).release().ptr();
  if (road == Road::kReference) return Py_NewRef(Py_NotImplemented);
  return perform_step(all, road, std::move(direction), optimizer, target);
}

// out = acc + weight*update
PyObject* add_up(Given& all, PyObject* verdict, const float* acc, double weight, float* out, PyObject* result) {
  const Road road = all.road(verdict);
  if (road == Road::kReference) return Py_NewRef(Py_NotImplemented);
#if defined(FASTAGG_CUDA)
  if (road == Road::kCuda) {
    const Released released;
    cuda::accumulate(all.update, acc, weight, out, all.where);
  }
#endif
  if (road == Road::kCuda) return borrowed(result).release().ptr();
  return all.perform([update = std::move(all.update), acc, weight, out, result = borrowed(result)] {
    const Released released(update.size >= kWorthReleasing);
    cpu::accumulate(update, acc, static_cast<float>(weight), out);
    return result;
  });
}

// accumulate(acc, update, weight, fresh, verdict)
PyObject* accumulate(const Arguments& given) {
  Given all(given[1]);
  float* const acc = all.vector("acc", given[0]);
  all.apart("acc", acc, true);
  return add_up(all, given[4], yes(given[3]) ? nullptr : acc, number(given[2], 1.0), acc, given[0]);
}

// gather(update, out)
PyObject* gather(const Arguments& given) {
  Given all(given[0]);
  float* const out = all.vector("out", given[1]);
  all.apart("out", out, false);
  return add_up(all, nullptr, nullptr, 1.0, out, given[1]);
}

// difference(a, b, out)
PyObject* difference(const Arguments& given) {
  Given all(given[1]);
  float *const a = all.vector("a", given[0]), *const out = all.vector("out", given[2]);
  all.vector("b", given[1]);
  apart("out", out, "a", a, all.update.size);
  apart("out", out, "b", static_cast<const float*>(all.update.pieces.empty() ? out : all.update.pieces[0].data),
        all.update.size);
  return add_up(all, nullptr, a, -1.0, out, given[2]);
}

// A named tuple of these numbers.
template <typename... Each>
py::object named_tuple(const py::object& kind, Each... each) {
  const py::tuple values = py::make_tuple(py::make_tuple(each...));
  PyObject* const made = PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(kind.ptr()), values.ptr(), nullptr);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

double root(double squares) { return squares >= 0.0 ? std::sqrt(squares) : squares; }

// inspect(update, Inspection): no such kernel but the CPU's
PyObject* inspect(const Arguments& given) {
  Given all(given[0]);
  if (all.road(nullptr) != Road::kCpu) return Py_NewRef(Py_NotImplemented);
  return all.perform([update = std::move(all.update), kind = borrowed(given[1])] {
    double found = 0.0;
    {
      const Released released(update.size >= kWorthReleasing);
      found = cpu::sum_squares(update);
    }
    return named_tuple(kind, std::isfinite(found), root(found));
  });
}

// distances(update, x, base, inner, Distances): no such kernel but the CPU's
PyObject* distances(const Arguments& given) {
  Given all(given[0]);
  const float *const x = all.vector("x", given[1]), *const base = all.vector("base", given[2]);
  if (all.road(nullptr) != Road::kCpu) return Py_NewRef(Py_NotImplemented);
  return all.perform([update = std::move(all.update), x, base, inner = yes(given[3]), kind = borrowed(given[4])] {
    cpu::Distances found{};
    {
      const Released released(update.size >= kWorthReleasing);
      found = cpu::distances(update, x, base, inner);
    }
    return named_tuple(kind, std::isfinite(found.update), std::sqrt(found.moved), root(found.update), found.inner);
  });
}

// -- prepared calls

constexpr const char* kPrepared = "fastagg.ops.prepare";

PyObject* run(PyObject* self, PyObject* /*none*/) {
  return guarded([&] {
    const auto* const prepared = static_cast<const Prepared*>(PyCapsule_GetPointer(self, kPrepared));
    for (const Memo& one : prepared->memory)
      if (!one.holds())
        throw Refused("prepare: the memory of a tensor was freed, moved or replaced since; prepare the call anew");
    return prepared->act().release().ptr();
  });
}

// prepare(op, arguments, keywords): what makes the call
PyObject* prepare(const Arguments& given) {
  if (!can_look()) throw Refused("prepare: needs torch 2.10 or newer");
  auto prepared = std::make_unique<Prepared>();
  Prepared* const before = std::exchange(preparing, prepared.get());
  const auto found = py::reinterpret_steal<py::object>(PyObject_Call(given[0], given[1], given[2]));
  preparing = before;
  if (!found) throw py::error_already_set();
  if (!prepared->act) throw Refused("prepare: this call cannot be prepared");
  static PyMethodDef method{"prepared", &run, METH_NOARGS, "Make the call that was prepared, and return its result."};
  const auto self = py::reinterpret_steal<py::object>(PyCapsule_New(prepared.get(), kPrepared, [](PyObject* held) {
    delete static_cast<Prepared*>(PyCapsule_GetPointer(held, kPrepared));
  }));
  if (!self) throw py::error_already_set();
  prepared.release();
  return PyCFunction_New(&method, self.ptr());
}

template <PyObject* (*Act)(const Arguments&)>
PyObject* entry(PyObject*, PyObject* const* given, Py_ssize_t count) {
  return guarded([&] { return Act({given, count}); });
}

template <PyObject* (*Act)(const Arguments&)>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&entry<Act>)), METH_FASTCALL, nullptr};
}

}  // namespace

void bind_ops(py::module_& m) {
  static std::array<PyMethodDef, 9> methods{
      method<&step>("step"),           method<&cached_step>("cached_step"), method<&accumulate>("accumulate"),
      method<&gather>("gather"),       method<&difference>("difference"),   method<&inspect>("inspect"),
      method<&distances>("distances"), method<&prepare>("prepare"),         PyMethodDef{}};
  py::module_ to = m.def_submodule("ops", "Called by fastagg.ops; arguments by position.");
  if (PyModule_AddFunctions(to.ptr(), methods.data()) != 0) throw py::error_already_set();
}

}  // namespace fastagg::bindings
