// Binds the simulator's local training (csrc/train) for fastagg/sim/clients/fused.py.
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "../train/crew.h"
#include "../train/order.h"
#include "../train/table.h"
#include "host.h"
#include "structs.h"

namespace py = pybind11;

namespace fastagg::bindings {
namespace {

using train::Crew;
using train::Description;
using train::LayerTable;

std::vector<Description> descriptions(const std::vector<py::dict>& layers) {
  std::vector<Description> descriptions;
  for (const py::dict& each : layers) {
    using D = Description;
    descriptions.push_back(made_of<D>(
        each, "kind", &D::kind, "input", &D::in, "other", &D::other, "relu", &D::relu, "channels", &D::channels,
        "kernel", &D::kernel, "stride", &D::stride, "padding", &D::padding, "groups", &D::groups, "eps", &D::eps,
        "momentum", &D::momentum, "weight", &D::weight, "bias", &D::bias, "mean", &D::mean, "variance", &D::variance));
  }
  return descriptions;
}

train::Pcg64 generator(const py::bytes& seed) {
  uint64_t words[4];
  const std::string_view text(seed);
  if (text.size() != sizeof words) throw SettingError("seed: expected 32 bytes");
  std::memcpy(words, text.data(), sizeof words);
  return train::Pcg64(words);
}

// The samples of a training, as indices, one batch after the other. `lengths` has the number of samples of each batch.
struct BatchOrder {
  std::vector<int64_t> drawn, lengths;
  const int64_t* index;

  // `state` is (seed, number of batches) for batches that are drawn here, epoch by epoch, or (address of the indices,
  // lengths). `size`: the number of the client's samples. `largest`: the number of samples in a full batch.
  BatchOrder(const py::tuple& state, int64_t size, int64_t largest) {
    if (state.size() != 2) throw SettingError("train: expected an order of two parts");
    const py::object first = state[0], second = state[1];
    if (!py::isinstance<py::bytes>(first)) {
      lengths = second.cast<std::vector<int64_t>>();
      index = at<const int64_t>(first.cast<Address>());
      return;
    }
    const auto steps = second.cast<int64_t>();
    if (size < 1 || size > kMostSamples || steps < 0) throw SettingError("train: no samples, or too many");
    const int64_t batch = std::min(largest, size), of_epoch = (size + batch - 1) / batch;
    const int64_t epochs = (steps + of_epoch - 1) / of_epoch;
    drawn.resize(static_cast<size_t>(epochs * size));
    train::permute(generator(first), size, epochs, drawn.data());
    lengths.reserve(static_cast<size_t>(steps));
    for (int64_t step = 0; step < steps; ++step) lengths.push_back(std::min(batch, size - step % of_epoch * batch));
    index = drawn.data();
  }

 private:
  static constexpr int64_t kMostSamples = int64_t{1} << 31;
};

// One client's training by a crew (train/crew.h). A Training keeps the memory that the training needs alive.
class Training {
 public:
  Training(std::shared_ptr<Crew> crew, std::shared_ptr<LayerTable> table, BatchOrder order,
           const train::TrainCall& call, py::object kept)
      : crew_(std::move(crew)), table_(std::move(table)), order_(std::move(order)), kept_(std::move(kept)) {
    task_.table = table_.get();
    task_.call = call;
    task_.call.index = order_.index;
    task_.call.lengths = order_.lengths.data();
    crew_->add(task_);
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;
  ~Training() {
    const GilRelease released;
    crew_->drop(task_);
  }
  void wait() {
    const GilRelease released;
    crew_->finish(task_);
  }

 private:
  std::shared_ptr<Crew> crew_;
  std::shared_ptr<LayerTable> table_;
  BatchOrder order_;
  py::object kept_;
  train::CrewTask task_{};
};

// Without a crew, trains a client and returns null. With a crew, leaves the training to the crew and returns a Training
// without waiting. `kept` must then own all memory that is passed by address.
std::unique_ptr<Training> train_client(const std::shared_ptr<LayerTable>& table, Address start, Address buffers,
                                       Address x, Address y, int64_t samples, const py::tuple& order, float lr,
                                       float momentum, float weight_decay, float mu, bool gradient, Address out,
                                       const std::shared_ptr<Crew>& crew, const py::object& kept) {
  BatchOrder batches(order, samples, table->batch());
  int64_t count = 0;
  for (const int64_t length : batches.lengths) {
    if (length < 1 || length > table->batch()) throw SettingError("train: a batch is empty or larger than the table's");
    count += length;
  }
  const auto* labels = at<const int64_t>(y);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t which = batches.index[i];
    if (which < 0 || which >= samples) throw SettingError("train: a batch has a sample that is not there");
    if (labels[which] < 0 || labels[which] >= table->outputs())
      throw SettingError("train: label " + std::to_string(labels[which]) + " is not one of the model's " +
                         std::to_string(table->outputs()) + " classes");
  }
  const train::TrainCall call{at<const float>(start),
                              at(buffers),
                              at<const float>(x),
                              labels,
                              batches.index,
                              batches.lengths.data(),
                              static_cast<int64_t>(batches.lengths.size()),
                              lr,
                              momentum,
                              weight_decay,
                              mu,
                              gradient,
                              at(out),
                              nullptr};
  if (crew) return std::make_unique<Training>(crew, table, std::move(batches), call, kept);
  const GilRelease released;
  table->train(call);
  return nullptr;
}

uint32_t below(const py::bytes& seed, uint32_t count) {
  if (count == 0) throw SettingError("below: expected a count of at least 1");
  return generator(seed).below(count);
}

void permutations(const py::bytes& seed, uint32_t size, int64_t count, Address out) {
  train::permute(generator(seed), size, count, at<int64_t>(out));
}

void evaluate(LayerTable& table, Address start, Address buffers, Address x, int64_t samples, Address outputs) {
  const GilRelease released;
  table.evaluate(at<const float>(start), at(buffers), at<const float>(x), samples, at(outputs));
}

}  // namespace

void bind_train(py::module_& m) {
  using py::arg;
  const py::kw_only by_name;
  py::class_<LayerTable, std::shared_ptr<LayerTable>>(m, "Table", "A network of layers that are trained without torch.")
      .def(py::init([](const std::array<int64_t, 3>& shape, const std::vector<py::dict>& layers, int64_t batch,
                       int64_t parameters, int64_t buffers) {
             return std::make_shared<LayerTable>(train::ImageShape{shape[0], shape[1], shape[2]}, descriptions(layers),
                                                 batch, parameters, buffers);
           }),
           by_name, arg("shape"), arg("layers"), arg("batch"), arg("parameters"), arg("buffers"))
      .def("train", &train_client, by_name, arg("start"), arg("buffers"), arg("x"), arg("y"), arg("samples"),
           arg("order"), arg("lr"), arg("momentum"), arg("weight_decay"), arg("mu"), arg("gradient"), arg("out"),
           arg("crew") = nullptr, arg("kept") = py::none())
      .def_property_readonly("outputs", &LayerTable::outputs)
      .def("evaluate", &evaluate, by_name, arg("start"), arg("buffers"), arg("x"), arg("samples"), arg("outputs"));
  py::class_<Crew, std::shared_ptr<Crew>>(m, "Crew", "Threads that train clients before their updates are needed.")
      .def(py::init(&Crew::make), arg("threads"));
  py::class_<Training>(m, "Training").def("wait", &Training::wait);
  m.def("uniform", [](const py::bytes& seed) { return generator(seed).uniform(); }, arg("seed"));
  m.def("below", &below, arg("seed"), arg("count"));
  m.def("permutations", &permutations, arg("seed"), arg("size"), arg("count"), arg("out"));
}

}  // namespace fastagg::bindings
