// The CUDA kernels as `_native.cuda`: the CPU functions' arguments, then the verdict, the device and the stream.
#include "../cuda/cuda.h"

#include "arguments.h"

namespace py = pybind11;

namespace fastagg {
namespace {

const cuda::Verdict* verdict_of(Address address) { return reinterpret_cast<const cuda::Verdict*>(address); }
cuda::Where on(int device, Address stream) { return {device, reinterpret_cast<void*>(stream)}; }

cpu::Optimizer optimizer_of(int kind, const Hyper& hyper, Address m, Address v, Address vhat, Address x,
                            Address x_out) {
  if (kind < 0) return {kSgd, hyper, nullptr, nullptr, nullptr, nullptr, nullptr, {}};
  return {static_cast<OptimizerKind>(kind), hyper, at(m), at(v), at(vhat), at(x), at(x_out), {}};
}

void step(const Pieces& pieces, int direction, Address acc, Address base, double gain, double weight, float scale,
          int optimizer, const Hyper& hyper, Address m, Address v, Address vhat, Address x, Address x_out,
          Address verdict, int device, Address stream) {
  const cpu::Update update = update_of(pieces);
  const cpu::Optimizer steps = optimizer_of(optimizer, hyper, m, v, vhat, x, x_out);
  const cpu::Direction along{static_cast<cpu::DirectionKind>(direction), at(acc), at(base), 1.0f, 1.0f, scale};
  py::gil_scoped_release release;
  cuda::step(update, along, gain, weight, steps, verdict_of(verdict), on(device, stream));
}

void accumulate(const Pieces& pieces, Address acc, double weight, Address acc_out, Address verdict, int device,
                Address stream) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  cuda::accumulate(update, at(acc), weight, at(acc_out), verdict_of(verdict), on(device, stream));
}

void norms(const Pieces& pieces, Address x, Address base, bool wants_inner, double clip_norm, double lam, double eps,
           double gamma_max, int64_t first, int64_t last, bool finish, Address partial, Address counter,
           Address verdict, int device, Address stream) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  cuda::norms(update, at(x), at(base), wants_inner, {clip_norm, lam, eps, gamma_max}, first, last, finish,
              reinterpret_cast<double*>(partial), reinterpret_cast<unsigned*>(counter),
              reinterpret_cast<cuda::Verdict*>(verdict), on(device, stream));
}

void cached_step(const Pieces& pieces, const cpu::Rows& rows, int kind, double gain, int64_t write, int64_t read,
                 const RandomKey& random, Address high, Address low, float entering, float leaving, float sum_scale,
                 Address acc, Address acc_out, float weight, float acc_scale, const Terms& terms, int optimizer,
                 const Hyper& hyper, Address m, Address v, Address vhat, Address x, Address x_out, Address verdict,
                 int device, Address stream) {
  const cpu::Update update = update_of(pieces);
  const cpu::CachedDirection direction = cached_direction_of(kind, write, read, random, high, low, entering, leaving,
                                                             sum_scale, acc, acc_out, weight, acc_scale, terms);
  const cpu::Optimizer steps = optimizer_of(optimizer, hyper, m, v, vhat, x, x_out);
  py::gil_scoped_release release;
  cuda::cached_step(update, rows, direction, gain, steps, verdict_of(verdict), on(device, stream));
}

void recompute_sum(int64_t size, const cpu::Rows& rows, Address weights, int64_t slots, Address high, Address low,
                   int64_t first, int64_t last, int device, Address stream) {
  py::gil_scoped_release release;
  cuda::recompute_sum(size, rows, at(weights), slots, {at(high), reinterpret_cast<int8_t*>(low)}, first, last,
                      on(device, stream));
}

void read_row(int64_t size, const cpu::Rows& rows, int64_t slot, Address out, int device, Address stream) {
  py::gil_scoped_release release;
  cuda::read_row(size, rows, slot, at(out), on(device, stream));
}

void sketch(const Pieces& pieces, int64_t k, uint64_t seed, Address partial, Address out, int device, Address stream) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  cuda::sketch(update, k, seed, at(partial), at(out), on(device, stream));
}

void soft_targets(Address logits, double scale, int64_t rows, int64_t classes, Address probs, Address labels,
                  Address entropy, int device, Address stream) {
  py::gil_scoped_release release;
  cuda::soft_targets(at(logits), scale, rows, classes, at(probs), reinterpret_cast<int64_t*>(labels),
                     reinterpret_cast<double*>(entropy), on(device, stream));
}

void distill(Address logits, Address probs, Address labels, Address entropy, Address which, int64_t teachers,
             int64_t rows, int64_t classes, double alpha_min, double alpha_max, Address scratch, Address loss,
             Address gradient, int device, Address stream) {
  py::gil_scoped_release release;
  cuda::distill(at(logits), at(probs), reinterpret_cast<const int64_t*>(labels),
                reinterpret_cast<const double*>(entropy), reinterpret_cast<const int64_t*>(which), teachers, rows,
                classes, alpha_min, alpha_max, reinterpret_cast<double*>(scratch), at(loss), at(gradient),
                on(device, stream));
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
  m.attr("cuda_version") = cuda::runtime_version();
  m.def("cuda_device_count", &cuda::device_count);
#if defined(FASTAGG_CUDA_EMULATED)
  m.attr("cuda_emulated") = true;  // csrc/emulation: for tests
#else
  m.attr("cuda_emulated") = false;
#endif
  py::module_ to = m.def_submodule("cuda", "Asynchronous on the stream that is the last argument.");
  to.def("compute_capability", [](int device) {
    int major = 0, minor = 0;
    cuda::compute_capability(device, &major, &minor);
    return std::make_pair(major, minor);
  });
  to.def("step", &step);
  to.def("accumulate", &accumulate);
  to.def("norms", &norms);
  to.def("cached_step", &cached_step);
  to.def("recompute_sum", &recompute_sum);
  to.def("read_row", &read_row);
  to.def("sketch", &sketch);
  to.def("soft_targets", &soft_targets);
  to.def("distill", &distill);
}

}  // namespace fastagg
