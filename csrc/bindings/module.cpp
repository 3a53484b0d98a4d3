// The Python door: addresses, sizes and scalars in, nothing else. Checks live in fastagg/ops.py, which owns tensors.
// Every call that touches vectors releases the GIL.
#include "../cpu/cached_step.h"
#include "../cpu/distill.h"
#include "../cpu/fold.h"
#include "../cpu/kernels.h"
#include "../cpu/norms.h"
#include "../cpu/pool.h"
#include "../cpu/step.h"
#include "arguments.h"

namespace py = pybind11;
using namespace fastagg;

namespace {

// `units` 0: fp32 moments. Else m, v and vhat are bytes, and `units` two rows of `blocks` floats: m's, and v's and
// vhat's.
cpu::Optimizer optimizer_of(int kind, const Hyper& hyper, Address m, Address v, Address vhat, Address x, Address x_out,
                            Address units, int64_t blocks, const RandomKey& random) {
  const auto named = static_cast<OptimizerKind>(kind);
  if (units == 0) return {named, hyper, at(m), at(v), at(vhat), at(x), at(x_out), {}};
  const auto bytes = [](Address address) { return reinterpret_cast<uint8_t*>(address); };
  return {named,   hyper, nullptr,   nullptr,
          nullptr, at(x), at(x_out), {bytes(m), bytes(v), bytes(vhat), at(units), at(units) + blocks, random}};
}

void step(const Pieces& pieces, int direction, Address acc, Address base, float gain, float weight, float scale,
          int optimizer, const Hyper& hyper, Address m, Address v, Address vhat, Address x, Address x_out,
          Address units, int64_t blocks, const RandomKey& random) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  cpu::step(update, {static_cast<cpu::DirectionKind>(direction), at(acc), at(base), gain, weight, scale},
            optimizer_of(optimizer, hyper, m, v, vhat, x, x_out, units, blocks, random));
}

void accumulate(const Pieces& pieces, Address acc, float weight, Address acc_out) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  cpu::accumulate(update, at(acc), weight, at(acc_out));
}

std::vector<bool> fold(const std::vector<std::tuple<Pieces, Address, float>>& models, Address acc, Address acc_out) {
  std::vector<cpu::Trained> trained;
  for (const auto& [pieces, base, weight] : models) trained.push_back({update_of(pieces), at(base), weight});
  std::vector<std::atomic<bool>> finite(models.size());
  for (auto& flag : finite) flag.store(true);
  {
    py::gil_scoped_release release;
    cpu::fold(trained, at(acc), at(acc_out), finite);
  }
  return {finite.begin(), finite.end()};
}

double sum_squares(const Pieces& pieces) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  return cpu::sum_squares(update);
}

std::tuple<double, double, double> distances(const Pieces& pieces, Address x, Address base, bool wants_inner) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  const cpu::Distances found = cpu::distances(update, at(x), at(base), wants_inner);
  return {found.moved, found.update, found.inner};
}

void sketch(const Pieces& pieces, int64_t k, uint64_t seed, Address out) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  cpu::sketch(update, k, seed, at(out));
}

void gather(const Pieces& pieces, Address out) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  cpu::gather(update, at(out));
}

void copy(const Pieces& pieces, int64_t first, int64_t count, int64_t item, Address out) {
  const cpu::Update update = update_of(pieces);
  py::gil_scoped_release release;
  cpu::copy(update, first, count, item, reinterpret_cast<void*>(out));
}

// `optimizer` < 0: the cache moves, the model does not.
void cached_step(const Pieces& pieces, const cpu::Rows& rows, int kind, float gain, int64_t write, int64_t read,
                 const RandomKey& random, Address high, Address low, float entering, float leaving, float sum_scale,
                 Address acc, Address acc_out, float weight, float acc_scale, const Terms& terms, int optimizer,
                 const Hyper& hyper, Address m, Address v, Address vhat, Address x, Address x_out, Address units,
                 int64_t blocks, const RandomKey& rounding) {
  const cpu::Update update = update_of(pieces);
  cpu::CachedDirection direction = cached_direction_of(kind, write, read, random, high, low, entering, leaving,
                                                       sum_scale, acc, acc_out, weight, acc_scale, terms);
  direction.gain = gain;
  cpu::Optimizer steps{kSgd, hyper, nullptr, nullptr, nullptr, nullptr, nullptr, {}};
  if (optimizer >= 0) steps = optimizer_of(optimizer, hyper, m, v, vhat, x, x_out, units, blocks, rounding);
  py::gil_scoped_release release;
  cpu::cached_step(update, rows, direction, steps);
}

void recompute_sum(int64_t size, const cpu::Rows& rows, Address weights, int64_t slots, Address high, Address low,
                   int64_t first, int64_t last) {
  py::gil_scoped_release release;
  cpu::recompute_sum(size, rows, at(weights), slots, {at(high), reinterpret_cast<int8_t*>(low)}, first, last);
}

void read_row(int64_t size, const cpu::Rows& rows, int64_t slot, Address out) {
  py::gil_scoped_release release;
  cpu::read_row(size, rows, slot, at(out));
}

template <typename T>
void soft_targets(Address logits, double scale, int64_t rows, int64_t classes, Address probs, Address labels,
                  Address entropy) {
  py::gil_scoped_release release;
  cpu::soft_targets(reinterpret_cast<const T*>(logits), scale, rows, classes, reinterpret_cast<T*>(probs),
                    reinterpret_cast<int64_t*>(labels), reinterpret_cast<double*>(entropy));
}

template <typename T>
std::pair<double, double> distill(Address logits, Address probs, Address labels, Address entropy, Address which,
                                  int64_t teachers, int64_t rows, int64_t classes, double alpha_min, double alpha_max,
                                  Address gradient) {
  py::gil_scoped_release release;
  const cpu::Distilled found = cpu::distill(
      reinterpret_cast<const T*>(logits), reinterpret_cast<const T*>(probs), reinterpret_cast<const int64_t*>(labels),
      reinterpret_cast<const double*>(entropy), reinterpret_cast<const int64_t*>(which), teachers, rows, classes,
      alpha_min, alpha_max, reinterpret_cast<T*>(gradient));
  return {found.loss, found.alpha};
}

py::dict cpu_isas() {
  py::dict found;
  for (int i = 0; i < cpu::isa_count(); ++i) found[cpu::isa(i).kernels->name] = cpu::isa(i).supported;
  return found;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "Compiled kernels of fastagg. Use fastagg.ops, which checks its arguments.";

  py::class_<Hyper>(m, "Hyper").def(py::init([](double lr, double beta1, double beta2, double eps, double root_scale) {
    return Hyper{static_cast<float>(lr),        static_cast<float>(beta1),       static_cast<float>(1.0 - beta1),
                 static_cast<float>(beta2),     static_cast<float>(1.0 - beta2), static_cast<float>(eps),
                 static_cast<float>(root_scale)};
  }));

  py::class_<cpu::Rows>(m, "Rows").def(py::init([](int format, Address data, Address scales, int64_t row_bytes,
                                                   int64_t row_scales) {
    return cpu::Rows{static_cast<RowFormat>(format), reinterpret_cast<void*>(data), at(scales), row_bytes, row_scales};
  }));
  py::class_<RandomKey>(m, "RandomKey").def(py::init([](uint64_t seed, uint64_t arrival, uint32_t client) {
    return RandomKey{seed, arrival, client};
  }));

  m.def("step", &step);
  m.def("cached_step", &cached_step);
  m.def("recompute_sum", &recompute_sum);
  m.def("read_row", &read_row);
  m.def("accumulate", &accumulate);
  m.def("fold", &fold);
  m.def("sum_squares", &sum_squares);
  m.def("distances", &distances);
  m.def("sketch", &sketch);
  m.def("gather", &gather);
  m.def("copy", &copy);
  m.def("soft_targets_f32", &soft_targets<float>);
  m.def("soft_targets_f64", &soft_targets<double>);
  m.def("distill_f32", &distill<float>);
  m.def("distill_f64", &distill<double>);

  m.def("cpu_isas", &cpu_isas, "Instruction sets compiled in, best first -> whether this processor has them.");
  m.def("isa", [] { return cpu::kernels().name; });
  m.def("select_isa", [](const std::string& name) { return cpu::select(name.c_str()); });
  m.def("threads", &cpu::threads);
  m.def("set_threads", &cpu::set_threads);

#if defined(FASTAGG_CUDA)
  bind_cuda(m);
#else
  m.attr("cuda_architectures") = "";
  m.attr("cuda_emulated") = false;
#endif
}
