// The module `_native` that Python imports. The functions of this file take no tensors, but structs and addresses.
// fastagg/ops checks tensors before it calls these functions. Functions of this file that read vectors release the GIL.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "../cpu/cpu.h"
#include "../cpu/pool.h"
#include "../cpu/tuning.h"
#include "../math/reduce.h"
#include "host.h"
#include "structs.h"

namespace py = pybind11;
using namespace fastagg;

extern const char* const fastagg_sources;  // the digest of the C++ sources (cmake/digest.cmake)

namespace {

void copy(const Update& update, int64_t first, int64_t count, int64_t item, Address out) {
  if (first < 0 || count < 0 || first + count > update.size) throw SettingError("copy: outside the update");
  py::gil_scoped_release release;
  cpu::copy(update, first, count, item, at<void>(out));
}

uint32_t crc32c(const Update& update, const std::vector<int64_t>& bytes, uint32_t before, bool in_software) {
  if (bytes.size() != update.pieces.size()) throw SettingError("crc32c: bytes of every piece are needed");
  py::gil_scoped_release release;
  for (size_t i = 0; i < bytes.size(); ++i) before = cpu::crc32c(update.pieces[i].data, bytes[i], before, in_software);
  return before;
}

void read_row(const Rows& rows, int64_t slot, Address out) {
  check_slot(rows, slot);
  py::gil_scoped_release release;
  cpu::read_row(rows, slot, at(out));
}

template <typename T>
void soft_targets(Address logits, double scale, const Batch& batch, const Targets& out) {
  const auto& [probs, labels, entropy, rows] = out;
  py::gil_scoped_release release;
  cpu::soft_targets(at<const T>(logits), scale, batch.first, batch.second, at<T>(probs), at<int64_t>(labels),
                    at<double>(entropy));
}

template <typename T>
std::pair<double, double> distill(Address logits, const Batch& batch, const Targets& targets, Address which,
                                  std::pair<double, double> alpha, Address gradient) {
  const auto& [probs, labels, entropy, rows] = targets;
  py::gil_scoped_release release;
  const cpu::DistillationLoss loss = cpu::distill(
      at<const T>(logits), at<const T>(probs), at<const int64_t>(labels), at<const double>(entropy),
      at<const int64_t>(which), rows, batch.first, batch.second, alpha.first, alpha.second, at<T>(gradient));
  return {loss.loss, loss.alpha};
}

py::dict cpu_isas() {
  py::dict isas;
  for (const auto& [name, supported] : cpu::isas()) isas[name] = supported;
  return isas;
}

using TuningValue = int64_t cpu::Tuning::*;
constexpr struct {
  const char* name;
  TuningValue value;
  int64_t least, largest, step;
} kTuning[] = {
    {"prefetch", &cpu::Tuning::prefetch, 0, 1 << 20, 64}, {"cache", &cpu::Tuning::cache, 0, INT64_MAX, 1},
    {"width", &cpu::Tuning::width, 128, 512, 128},        {"wide_below", &cpu::Tuning::wide_below, 0, INT64_MAX, 1},
    {"spin", &cpu::Tuning::spin, 0, 100000, 1},           {"group", &cpu::Tuning::group, 4 * kBlock, kGroup, kBlock},
    {"places", &cpu::Tuning::places, 1, kGroupStrands, 1}};

py::dict dict_of(const cpu::Tuning& tuning) {
  py::dict values;
  for (const auto& entry : kTuning) values[entry.name] = tuning.*entry.value;
  return values;
}

// Sets tuning values by name. The names are the keys of Python's `tuning()`.
void set_tuning(const std::map<std::string, int64_t>& values) {
  cpu::Tuning tuning = cpu::tuning();
  for (const auto& [name, value] : values) {
    const auto* const entry = std::find_if(std::begin(kTuning), std::end(kTuning),
                                           [&wanted = name](const auto& entry) { return wanted == entry.name; });
    if (entry == std::end(kTuning)) throw SettingError("tuning: unknown setting '" + name + "'");
    if (value < entry->least || value > entry->largest || value % entry->step != 0)
      throw SettingError("tuning: " + name + ": expected " +
                         (entry->step > 1 ? "a multiple of " + std::to_string(entry->step) + " in " : "") +
                         std::to_string(entry->least) + ".." + std::to_string(entry->largest) + ", got " +
                         std::to_string(value));
    tuning.*entry->value = value;
  }
  if (tuning.width == 384) throw SettingError("tuning: width: expected 128, 256 or 512");
  if (kGroupStrands % tuning.places != 0) throw SettingError("tuning: places: expected a power of two");
  tuning.name = "set";
  cpu::set_tuning(tuning);
}

// Allocates an object for pybind11, which does not check for a failed allocation. Throws std::bad_alloc.
PyObject* allocated(PyTypeObject* type, Py_ssize_t count) {
  if (PyObject* const made = PyType_GenericAlloc(type, count)) return made;
  PyErr_Clear();
  store::use_reserve();
  if (PyObject* const made = PyType_GenericAlloc(type, count)) return made;
  PyErr_Clear();
  throw std::bad_alloc();
}

PyObject* created(PyTypeObject* type, PyObject*, PyObject*) {
  return bindings::guarded([type] { return py::detail::make_new_instance(type); });
}

// For each class, pybind11's function that frees an object's value. If pybind11 has no memory to register a new object,
// pybind11 has freed the value already. `deallocate` must then not free the value again.
std::map<const py::detail::type_info*, void (*)(py::detail::value_and_holder&)> deallocs;

void deallocate(py::detail::value_and_holder& object) {
  if (object.holder_constructed()) deallocs.at(object.type)(object);
}

// Installs `allocated`, `created` and `deallocate` in all classes of a module and of its submodules.
void keep_allocating(const py::module_& of) {
  for (const auto& [name, member] : py::dict(of.attr("__dict__"))) {
    if (PyType_Check(member.ptr())) {
      auto* const type = reinterpret_cast<PyTypeObject*>(member.ptr());
      if (py::detail::type_info* const known = py::detail::get_type_info(type)) {
        type->tp_alloc = &allocated, type->tp_new = &created;
        deallocs[known] = std::exchange(known->dealloc, &deallocate);
      }
    }
    if (PyModule_Check(member.ptr())) keep_allocating(py::reinterpret_borrow<py::module_>(member));
  }
}

}  // namespace

PYBIND11_MODULE(_fastagg, m, py::mod_gil_not_used()) {
  using py::arg;
  const py::kw_only by_name;
  m.doc() = "Compiled kernels of fastagg. Use fastagg.ops, which checks its arguments.";
  py::register_exception_translator([](std::exception_ptr raised) {
    if (raised) bindings::set_error_of(raised);
  });
  bindings::install_waiting();
  store::keep_reserve();
  py::module_::import("atexit").attr("register")(py::cpp_function(&bindings::end_calls));
  bind_structs(m);
  bindings::bind_memory(m);
  bindings::bind_records(m);
  py::module_ engine = m.def_submodule("engine", "A server's state, and all changes of that state.");
  bindings::bind_extension(engine);
  bindings::bind_directions(engine);
  bindings::bind_engine(engine);
  py::module_ log = m.def_submodule("log", "The log, which records a server's changes on disk.");
  bindings::bind_log(log);
  bindings::bind_train(m);
  bindings::bind_ops(m);
  bindings::bind_encoding(m);

  m.def("copy", &copy, arg("update"), by_name, arg("first"), arg("count"), arg("item"), arg("out"));
  m.def("crc32c", &crc32c, arg("update"), by_name, arg("bytes"), arg("before"), arg("in_software"));
  m.def("read_row", &read_row, arg("rows"), by_name, arg("slot"), arg("out"));

  m.def("soft_targets_f32", &soft_targets<float>, by_name, arg("logits"), arg("scale"), arg("batch"), arg("out"));
  m.def("soft_targets_f64", &soft_targets<double>, by_name, arg("logits"), arg("scale"), arg("batch"), arg("out"));
  m.def("distill_f32", &distill<float>, by_name, arg("logits"), arg("batch"), arg("targets"), arg("which"),
        arg("alpha"), arg("gradient"));
  m.def("distill_f64", &distill<double>, by_name, arg("logits"), arg("batch"), arg("targets"), arg("which"),
        arg("alpha"), arg("gradient"));

  m.def("cpu_isas", &cpu_isas, "The compiled-in instruction sets, best first -> whether this processor has the set.");
  m.def("isa", &cpu::isa);
  m.def("select_isa", &cpu::select);
  m.def("threads", &cpu::threads);
  m.def("set_threads", &cpu::set_threads);
  m.def("processor", [] {
    const cpu::Processor& host = cpu::processor();
    return std::make_tuple(std::string(host.vendor), host.family, host.model);
  });
  m.def("default_tuning", [] { return dict_of(cpu::default_tuning()); });
  m.def("default_tuning_name", [] { return cpu::default_tuning().name; });
  m.def("tuning", [] { return dict_of(cpu::tuning()); });
  m.def("set_tuning", &set_tuning, arg("settings"));

  keep_allocating(m);
  m.attr("sources") = fastagg_sources;
#if defined(FASTAGG_CUDA)
  bind_cuda(m);
#else
  m.attr("cuda_architectures") = "";
  m.attr("cuda_skipped") = FASTAGG_CUDA_SKIPPED;
  m.attr("cuda_emulated") = false;
#endif
}

// The module refuses an import in a second interpreter of the process. Python 3.12 refuses such an import itself. With
// Python 3.11, pybind11 would wait for ever.
PYBIND11_PLUGIN_IMPL(_native) {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__fastagg();
  PyErr_SetString(PyExc_ImportError, "fastagg runs in a process's main interpreter only; start a process instead");
  return nullptr;
}
