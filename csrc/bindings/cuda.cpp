// Binds the CUDA kernels as `_native.cuda`, for fastagg/ops. A kernel takes the same structs as the CPU's function, and
// a `Where` with a device and a stream. Some kernels have further structs.
#include "../cuda/cuda.h"

#include "structs.h"

namespace py = pybind11;

namespace fastagg {

void check_launch(const Update& update) {
  if (update.pieces.size() > cuda::kMostPieces)
    throw SettingError("update: expected at most " + std::to_string(cuda::kMostPieces) +
                       " pieces on a CUDA device, got " + std::to_string(update.pieces.size()));
}

namespace {

using py::arg;

void read_row(const Rows& rows, int64_t slot, Address out, const cuda::LaunchPlace& where) {
  check_slot(rows, slot);
  cuda::read_row(rows, slot, at(out), where);
}

void measure(const Update& update, const cuda::DistanceBase& against, Address scratch, Address sums,
             const cuda::LaunchPlace& where) {
  check_launch(update);
  if ((against.x == nullptr) != (against.base == nullptr)) throw SettingError("measure: x and base belong together");
  cuda::measure(update, against, at<double>(scratch), at<double>(sums), where);
}

cuda::Logits logits_of(Address values, const Batch& batch) { return {at(values), batch.first, batch.second}; }

cuda::Targets targets_of(const Targets& targets) {
  const auto& [probs, labels, entropy, rows] = targets;
  return {at(probs), at<int64_t>(labels), at<double>(entropy), rows};
}

void soft_targets(Address logits, double scale, const Batch& batch, const Targets& out,
                  const cuda::LaunchPlace& where) {
  cuda::soft_targets(logits_of(logits, batch), scale, targets_of(out), where);
}

void distill(Address logits, const Batch& batch, const Targets& targets, const cuda::Loss& out,
             const cuda::LaunchPlace& where) {
  cuda::distill(logits_of(logits, batch), targets_of(targets), out, where);
}

cuda::Loss loss_of(Address which, std::pair<double, double> alpha, Address scratch, Address loss, Address gradient) {
  return {at<int64_t>(which), alpha.first, alpha.second, at<double>(scratch), at(loss), at(gradient)};
}

void bind_device_structs(py::module_& m) {
  const py::kw_only by_name;
  py::class_<cuda::LaunchPlace>(m, "Where")
      .def(py::init([](int device, Address stream) { return cuda::LaunchPlace{device, at<void>(stream)}; }), by_name,
           arg("device"), arg("stream"));
  py::class_<cuda::DistanceBase>(m, "Against")
      .def(py::init([](Address x, Address base, bool inner) { return cuda::DistanceBase{at(x), at(base), inner}; }),
           by_name, arg("x") = 0, arg("base") = 0, arg("inner") = false);
  py::class_<cuda::Loss>(m, "Loss").def(py::init(&loss_of), by_name, arg("which"), arg("alpha"), arg("scratch"),
                                        arg("loss"), arg("gradient"));
}

void bind_functions(py::module_& m) {
  const py::kw_only by_name;
  m.def("compute_capability", [](int device) {
    int major = 0, minor = 0;
    cuda::compute_capability(device, &major, &minor);
    return std::make_pair(major, minor);
  });
  m.def("read_row", &read_row, arg("rows"), by_name, arg("slot"), arg("out"), arg("where"));
  m.def("measure_scratch", &cuda::measure_scratch, arg("size"),
        "The length of `scratch` that `measure` needs for `size` elements, in numbers of 8 bytes.");
  m.def("measure_counters", &cuda::measure_counters, arg("size"),
        "The index in `scratch`. From this index on, all numbers must be 0 before the first launch.");
  m.def("measure", &measure, arg("update"), arg("against"), by_name, arg("scratch"), arg("sums"), arg("where"));
  m.def("soft_targets", &soft_targets, by_name, arg("logits"), arg("scale"), arg("batch"), arg("out"), arg("where"));
  m.def("distill", &distill, by_name, arg("logits"), arg("batch"), arg("targets"), arg("out"), arg("where"));
}

}  // namespace

void bind_cuda(py::module_& m) {
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const cuda::Error& error) {
      py::set_error(py::module_::import("fastagg.errors").attr("DeviceError"), error.what());
    }
  });
  m.attr("cuda_architectures") = FASTAGG_CUDA_ARCHITECTURES;
  m.attr("cuda_ptx") = FASTAGG_CUDA_PTX;
  m.attr("cuda_version") = cuda::runtime_version();
  m.def("cuda_device_count", &cuda::device_count);
  m.def("cuda_answer", [] {
    const cuda::Driver driver = cuda::driver();
    return std::make_tuple(driver.devices, driver.version, driver.words);
  });
#if defined(FASTAGG_CUDA_EMULATED)
  m.attr("cuda_emulated") = true;  // this build emulates CUDA on the CPU, for tests
  bind_emulation(m);
#else
  m.attr("cuda_emulated") = false;
#endif
  py::module_ to_device = m.def_submodule("cuda", "CUDA kernels, which run asynchronously on the stream of `where`.");
  bind_device_structs(to_device);
  bind_functions(to_device);
}

}  // namespace fastagg
