// Servers for the tests: an engine of each kind of direction, on the CPU, and answers for it.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "../../../csrc/engine/all_clients.h"
#include "../../../csrc/engine/buffers.h"
#include "../../../csrc/engine/calibrated.h"
#include "../../../csrc/engine/engine.h"
#include "../../../csrc/engine/on_cpu.h"
#include "../../../csrc/engine/ordered.h"
#include "../../../csrc/engine/single.h"
#include "../../../csrc/math/optimizers.h"

namespace fastagg::engine {

enum class Rule { kFedBuff, kAsgd, kFadas, kCombined, kAce, kAceInt8, kAced, kCa2fl, kFedAvg };
constexpr Rule kRules[] = {Rule::kFedBuff, Rule::kAsgd, Rule::kFadas, Rule::kAce, Rule::kCombined};
constexpr int64_t kCapacity = 3, kClients = 7;
constexpr double kRate = 0.25, kBeta1 = 0.9, kBeta2 = 0.99, kEps = 1e-3;

// The mean, as what a round becomes: of updates that wait as they came.
class Mean : public Combiner {
 public:
  std::vector<double> weigh(const std::vector<WeightedUpdate>& held, int64_t, Runner&, float* weights) const override {
    for (const WeightedUpdate& one : held) *weights++ = one.by / static_cast<float>(held.size());
    return {};
  }
  CombineSetting how(int64_t) const override { return {}; }
};

struct Server {
  Rule rule;
  int64_t size;
  store::Vector rows, scales, sum, acc;
  std::shared_ptr<Engine> engine;

  Server(Rule which, int64_t elements, bool numbered = true,
         std::shared_ptr<Runner> runner = std::make_shared<CpuRunner>())
      : rule(which), size(elements) {
    const auto memory = store::host_memory();
    const auto zeros = [&](int64_t count) {
      store::Vector made = memory->vector(count);
      memory->zero(made.data, count * 4);
      return made;
    };
    const bool combines = rule == Rule::kCombined;
    const bool buffers = rule == Rule::kFedBuff || rule == Rule::kFadas || rule == Rule::kFedAvg || combines;
    const bool plain = rule == Rule::kAce || rule == Rule::kCa2fl;
    Settings settings;
    settings.size = size;
    settings.clients = numbered || rule >= Rule::kAce ? kClients : -1;
    settings.closes_early = settings.folds = buffers;
    settings.keeps_versions = true;
    std::shared_ptr<DirectionState> direction;
    if (buffers) {
      BufferedDirection::Setting setting{kCapacity, false, size};
      if (combines) setting.combine = std::make_shared<Mean>();
      direction = buffer_of(1.0, setting, memory);
    } else if (rule == Rule::kAsgd) {
      direction = std::make_shared<SingleDirection>(-1.0, false, 0.0);
    } else {
      Rows held;
      held.format = plain ? kPlainRows : place_in<Int8>(RowFormats{});
      held.size = size, held.slots = rule == Rule::kCa2fl ? kClients + kCapacity : kClients;
      rows = zeros(padded(size) * held.slots), scales = zeros(held.row_scales() * held.slots),
      sum = zeros(padded(size));
      acc = zeros(padded(size));
      held.data = rows.data, held.scales = plain ? nullptr : scales.data;
      const auto again = rule == Rule::kAce ? nullptr : std::make_shared<Resummation>(held, memory, nullptr);
      const int64_t oldest = rule == Rule::kAced ? 1 : -1;
      if (rule == Rule::kCa2fl)
        direction = std::make_shared<CalibratedDirection>(-1.0, CalibratedDirection::Setting{kClients, kCapacity, true},
                                                          held, 1, sum.data, acc.data, again);
      else
        direction = std::make_shared<AllClients>(
            -1.0, AllClients::Setting{kClients, false, rule == Rule::kAce, oldest, true, 1, sum.data}, held, again);
    }
    if (rule == Rule::kFedAvg) direction = std::make_shared<OrderedDirection>(std::move(direction));
    OptimizerSettings optimizer;
    optimizer.kind = rule == Rule::kFadas ? place_in<Amsgrad>(Optimizers{}) : place_in<Sgd>(Optimizers{});
    optimizer.lr = kRate;
    if (rule == Rule::kFadas) optimizer.beta1 = kBeta1, optimizer.beta2 = kBeta2, optimizer.eps = kEps;
    engine = std::make_shared<Engine>(settings, direction, optimizer, 1, Place{memory, std::move(runner), nullptr},
                                      nullptr, zeros(size));
  }

  std::vector<float> model() const { return {engine->model.current.data, engine->model.current.data + size}; }
};

inline std::vector<float> numbers(int64_t size, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> made(static_cast<size_t>(size));
  for (float& one : made) one = normal(random);
  return made;
}

inline Answer answer_of(int64_t client, int64_t version, const std::vector<float>& values) {
  Answer answer;
  answer.client = ClientId::of(client);
  answer.version = version;
  answer.update.add(values.data(), static_cast<int64_t>(values.size()), kFloat32);
  return answer;
}

}  // namespace fastagg::engine
