// Every CUDA kernel under ThreadSanitizer, with each CUDA thread as a thread of its own
// (tests/emulation/race_detector.h):
//
//   fastagg_races                           silent if a barrier or a fence orders all accesses to shared data
//   FASTAGG_PLANT=FILE:LINE fastagg_races   disables one barrier or fence, and must report a race
//
// .ci/races.sh runs both, for every barrier and fence. With these sizes every kernel has several blocks of threads, and
// some threads run their loop twice.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>

#include "../../csrc/cuda/cuda.h"
#include "../../csrc/math/optimizers.h"

using namespace fastagg;

namespace {

constexpr int64_t kBlockSize = 1024;
const cuda::LaunchPlace kWhere{0, nullptr};

std::mt19937 generator(7);

std::vector<float> vector(int64_t size, bool positive = false) {
  std::normal_distribution<float> normal;
  std::vector<float> found(static_cast<size_t>(size));
  for (float& value : found) {
    value = normal(generator);
    if (positive && value < 0.0f) value = -value;
  }
  return found;
}

Update whole(const std::vector<float>& values) {
  Update update;
  update.add(values.data(), static_cast<int64_t>(values.size()), kFloat32);
  return update;
}

// The same update in three pieces with odd ends.
Update cut(const std::vector<float>& values) {
  Update update;
  const int64_t size = static_cast<int64_t>(values.size()), first = size / 3 + 1, second = size / 2 + 3;
  update.add(values.data(), first, kFloat32);
  update.add(values.data() + first, second - first, kFloat32);
  update.add(values.data() + second, size - second, kFloat32);
  return update;
}

struct State {
  explicit State(int64_t size)
      : x(vector(size)),
        m(vector(size)),
        v(vector(size, true)),
        vhat(vector(size, true)),
        codes(static_cast<size_t>(3 * padded(size)), 77),
        units(static_cast<size_t>(2 * padded(size) / kScaleBlock), 1e-9f) {}
  std::vector<float> x, m, v, vhat;
  std::vector<uint8_t> codes;
  std::vector<float> units;

  Optimizer optimizer(int kind, bool coded) {
    const int64_t size = static_cast<int64_t>(x.size());
    Optimizer found;
    found.kind = kind;
    found.hyper = {0.1f, 0.9f, 0.1f, 0.99f, 0.01f, 1e-8f, 1.0f};
    found.x = found.x_out = x.data();
    visit_at(kind, Optimizers{}, [&](auto one) {
      using Kind = decltype(one);
      Moments& to = found.moments;
      if (coded) {
        to.coded_m = codes.data();
        to.units_m = units.data();
        to.key = {1, 2, 3};
        if (Kind::kV) to.coded_v = codes.data() + padded(size), to.units_v = units.data() + padded(size) / kScaleBlock;
        if (Kind::kVhat) to.coded_vhat = codes.data() + 2 * padded(size);
      } else {
        if (Kind::kM) to.m = m.data();
        if (Kind::kV) to.v = v.data();
        if (Kind::kVhat) to.vhat = vhat.data();
      }
    });
    return found;
  }
};

void steps() {
  const std::vector<float> g = vector(9 * kBlockSize + 300), acc = vector(9 * kBlockSize + 300);
  State state(static_cast<int64_t>(g.size()));
  for (const bool coded : {false, true})
    for (const int kind : {place_in<Momentum>(Optimizers{}), place_in<Amsgrad>(Optimizers{})})
      for (const DirectionKind direct : {kSingle, kFlush, kBlend}) {
        Direction direction;
        direction.kind = direct;
        direction.buffer.acc = acc.data();
        direction.base = acc.data();
        cuda::step(direct == kFlush ? cut(g) : whole(g), direction, state.optimizer(kind, coded), kWhere);
      }
  std::vector<float> out(g.size());
  cuda::accumulate(cut(g), acc.data(), 0.5, out.data(), kWhere);
  cuda::accumulate(whole(g), nullptr, 0.5, out.data(), kWhere);
}

void norms() {
  // Nine groups have more quarters than the emulated device has blocks, so some blocks run their loop twice.
  const std::vector<float> g = vector(9 * 65536 - 4000), x = vector(9 * 65536 - 4000);
  std::vector<double> scratch(static_cast<size_t>(cuda::measure_scratch(static_cast<int64_t>(g.size()))), 1e300);
  std::fill(scratch.begin() + cuda::measure_counters(static_cast<int64_t>(g.size())), scratch.end(), 0.0);
  double sums[cuda::kSums]{};
  cuda::measure(whole(g), {}, scratch.data(), sums, kWhere);
  cuda::measure(cut(g), {}, scratch.data(), sums, kWhere);
  cuda::measure(whole(g), {x.data(), g.data(), true}, scratch.data(), sums, kWhere);
  double plain = 0.0;
  for (const float value : g) plain += static_cast<double>(value) * value;
  if (!(sums[0] > 0.999 * plain && sums[0] < 1.001 * plain)) std::abort();
}

void rows() {
  const int64_t size = 9 * kBlockSize + 300, slots = 5;
  const std::vector<float> g = vector(size);
  std::vector<float> total = vector(size), acc = vector(size), out(static_cast<size_t>(size));
  const std::vector<float> weights = vector(slots);
  State state(size);
  for (int format = 0; format < RowFormats::kCount; ++format) {
    std::vector<uint32_t> data(static_cast<size_t>(slots * padded(size)), 0);
    std::vector<float> scales(static_cast<size_t>(slots * padded(size) / kScaleBlock), 1e-3f);
    Rows all{format, size, slots, data.data(), format_facts(format).scaled ? scales.data() : nullptr};
    for (int arrival = 0; arrival < 4; ++arrival) {
      Direction direction;
      direction.kind = arrival % 3 == 2 ? kCalibrated : kMean;
      direction.row = {format,
                       arrival == 0 ? Row{} : all.row(arrival % 2),
                       all.row(arrival == 3 ? 2 : arrival % 2),
                       {1, static_cast<uint64_t>(arrival), 0}};
      direction.sum.values = total.data();
      // the first is the row that was just written
      direction.sum.terms = {{all.row(arrival % 2), 0.5f}, {all.row(3), -0.5f}};
      direction.buffer.acc = acc.data();
      direction.buffer.out = acc.data();
      const Optimizer optimizer = state.optimizer(place_in<Amsgrad>(Optimizers{}), arrival % 2 == 1);
      cuda::step(arrival % 2 == 0 ? whole(g) : cut(g), direction, optimizer, kWhere);
    }
    cuda::recompute_sum(all, weights.data(), total.data(), {0, 9, 1}, kWhere);
    std::vector<double> shadows(static_cast<size_t>(3 * kBlockSize), 0.0);
    const RowJob jobs[] = {
        {0, 0, 5, shadows.data()}, {9, 1, 4, shadows.data() + kBlockSize}, {7, 2, 3, shadows.data() + 2 * kBlockSize}};
    cuda::add_rows(all, jobs, 3, weights.data(), 1.0f, kWhere);
    cuda::settle_rows(jobs, 3, total.data(), size, kWhere);
    cuda::read_row(all, 1, out.data(), kWhere);
  }
}

void combining() {
  // Forty rows are sorted 128 elements at a time: threads share columns, and blocks run their loop twice.
  const int64_t size = 5000, count = 40;
  std::vector<std::vector<float>> values;
  std::vector<cuda::HeldRow> rows(static_cast<size_t>(count));
  for (cuda::HeldRow& row : rows) row.data = values.emplace_back(vector(size)).data(), row.by = 0.5f;
  const cuda::HeldRows all{rows.data(), count, size};
  std::vector<float> out(static_cast<size_t>(size));
  for (int kind = 0; kind < CombineKinds::kCount; ++kind) cuda::combine(all, {kind, 3}, out.data(), kWhere);
  const std::vector<int32_t> tiles{0, 1, 4, 5, 8};
  const auto listed = static_cast<int64_t>(tiles.size());
  std::vector<double> sums(static_cast<size_t>(listed * cuda::kSide * cuda::kSide));
  for (const bool apart : {false, true}) cuda::pair_sums(all, {tiles.data(), listed, apart, sums.data()}, kWhere);
}

void noise() {
  const std::vector<float> g = vector(130 * kBlockSize);  // more blocks than the emulated device has warps
  std::vector<float> past(g.size());
  State state(static_cast<int64_t>(g.size()));
  Direction direction;
  direction.noise.deviation = 1.0f, direction.noise.count = 1;
  direction.noise.past[0] = {past.data(), 0.3f, 0.9f};
  cuda::step(whole(g), direction, state.optimizer(place_in<Amsgrad>(Optimizers{}), false), kWhere);
}

void distillation() {
  const int64_t count = 20, classes = 700;  // more rows than the emulated device has blocks
  const std::vector<float> logits = vector(count * classes);
  std::vector<float> probs(logits.size()), gradient(logits.size());
  std::vector<int64_t> labels(static_cast<size_t>(count));
  std::vector<double> entropy(static_cast<size_t>(count)), scratch(static_cast<size_t>(count + 2));
  float loss = 0.0f;
  const cuda::Targets targets{probs.data(), labels.data(), entropy.data(), count};
  cuda::soft_targets({logits.data(), count, classes}, 0.5, targets, kWhere);
  cuda::distill({logits.data(), count, classes}, targets, {nullptr, 0.2, 0.8, scratch.data(), &loss, gradient.data()},
                kWhere);
}

}  // namespace

int main(int count, char** names) {
  const struct {
    const char* name;
    void (*run)();
  } all[] = {{"norms", norms},         {"steps", steps}, {"rows", rows},
             {"combining", combining}, {"noise", noise}, {"distillation", distillation}};
  for (const auto& each : all) {
    bool wanted = count == 1;
    for (int i = 1; i < count; ++i) wanted = wanted || std::strcmp(names[i], each.name) == 0;
    if (wanted) each.run();
  }
  std::puts("ran");
}
