#include "optimizer.h"

#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "../math/moments.h"
#include "../math/optimizers.h"
#include "contribution.h"

namespace fastagg::engine {
namespace {

int64_t blocks_of(int64_t size) { return (size + kScaleBlock - 1) / kScaleBlock; }

double norm_of(const store::Vector& vector, int64_t size) {
  if (!vector) return 0.0;
  return std::sqrt(cpu::sum_squares(store::update_of(vector, size)));
}

}  // namespace

OptimizerState::OptimizerState(const OptimizerSettings& chosen, int64_t size, uint64_t seed,
                               std::shared_ptr<store::Memory> memory)
    : settings(chosen), size_(size), seed_(seed), memory_(std::move(memory)) {
  const auto filled = [&](int64_t nbytes, uint32_t word) {
    store::Vector made = memory_->bytes(nbytes);
    if (word == 0) return memory_->zero(made.data, nbytes), made;
    const store::Owner host = store::new_memory(nbytes);
    std::fill_n(static_cast<uint32_t*>(host.get()), nbytes / 4, word);
    return memory_->put(made.data, host.get(), nbytes), made;
  };
  const int64_t blocks = blocks_of(size);
  const int64_t nbytes = settings.coded ? blocks * kScaleBlock : size * static_cast<int64_t>(sizeof(float));
  // v and vhat start at `initial`, or in 8 bits at the code that is nearest to `initial`. m starts at 0.
  const auto first = static_cast<float>(settings.initial);
  const uint32_t unit = settings.coded && first > 0.0f ? unit_bits(bits_of(first), kSpanV) : 0;
  const float stored = std::max(first, 0.125f * float_from_bits(unit));
  const uint32_t code = (bits_of(stored + float_from_bits(unit)) - unit + (1u << (kCut - 1))) >> kCut;
  const uint32_t word = unit > 0 ? code * 0x01010101u : bits_of(first);
  visit_at(settings.kind, Optimizers{}, [&](auto kind) {
    using Kind = decltype(kind);
    if (Kind::kM) m_ = filled(nbytes, 0);
    if (Kind::kV) v_ = filled(nbytes, word);
    if (Kind::kVhat) vhat_ = filled(nbytes, word);
    if (settings.coded && !Kind::kPlain) units_ = filled((Kind::kV ? 2 : 1) * blocks * 4, 0);
    settings.coded = settings.coded && !Kind::kPlain;
  });
  if (unit > 0 && v_) memory_->copy(units_.data + blocks, filled(blocks * 4, unit).data, blocks * 4);
  if (v_) bounds.v = 1.125 * settings.initial;  // the value of the nearest code is at most 1/16 larger than `initial`
}

std::vector<OptimizerState::Moment> OptimizerState::moments() const {
  const int64_t blocks = blocks_of(size_);
  const int64_t nbytes = settings.coded ? blocks * kScaleBlock : size_ * static_cast<int64_t>(sizeof(float));
  std::vector<Moment> moments;
  if (m_) moments.push_back({"m", m_, nbytes});
  if (v_) moments.push_back({"v", v_, nbytes});
  if (vhat_) moments.push_back({"vhat", vhat_, nbytes});
  if (units_) moments.push_back({"units", units_, (v_ ? 2 : 1) * blocks * static_cast<int64_t>(sizeof(float))});
  return moments;
}

int64_t OptimizerState::nbytes() const {
  int64_t sum = 0;
  for (const Moment& moment : moments()) sum += moment.nbytes;
  return sum;
}

double OptimizerState::growth(double lr, double d, double along, MomentBounds& next) const {
  double largest = along;
  next = bounds;
  visit_at(settings.kind, Optimizers{}, [&](auto kind) {
    using Kind = decltype(kind);
    const double least = settings.eps + std::sqrt(settings.eps_root);
    const double part = 1.0 / static_cast<double>(settings.period);
    const double reach = Kind::reach({settings.beta1, settings.beta2, least, part}, d, next);
    if (!Kind::kAlong) largest = std::abs(lr) * reach;
    // The kernel computes the rate with bias correction, and the product of rate and m, before the division by the
    // root of a second moment. Neither the rate nor the product may overflow.
    const double rate = std::abs(lr) / (settings.bias_correction ? 1.0 - settings.beta1 : 1.0);
    if (Kind::kV && !Kind::kPlain && rate * std::max(next.m, 1.0) > kLargestModel) largest = HUGE_VAL;
    if (settings.look_ahead) largest += std::abs(lr) * settings.beta1 * next.m;
  });
  return largest;
}

MomentBounds OptimizerState::measured() const {
  if (!settings.coded) return {norm_of(m_, size_), std::max(norm_of(v_, size_), norm_of(vhat_, size_))};
  // A code of m stands for less than 2^17 units of its block, a code of v for less than 2^33 units (math/moments.h).
  const int64_t blocks = blocks_of(size_);
  const auto largest = [&](int64_t begin) {
    return blocks == 0 ? 0.0
                       : static_cast<double>(*std::max_element(units_.data + begin, units_.data + begin + blocks));
  };
  return {0x1p17 * largest(0), v_ ? 0x1p33 * largest(blocks) : 0.0};
}

OptimizerState OptimizerState::copy() const {
  OptimizerState made = *this;
  for (const Moment& moment : moments())
    for (store::Vector* const to : {&made.m_, &made.v_, &made.vhat_, &made.units_}) {
      if (to->data != moment.data.data) continue;
      *to = memory_->bytes(moment.nbytes);
      memory_->copy(to->data, moment.data.data, moment.nbytes);
    }
  return made;
}

Moments moments_of(const std::array<float*, 3>& all, float* units, int64_t size, const RandomKey& key) {
  const auto [m, v, vhat] = all;
  if (units == nullptr) return {m, v, vhat};
  const auto bytes = [](float* of) { return reinterpret_cast<uint8_t*>(of); };
  Moments moments;
  moments.coded_m = bytes(m), moments.coded_v = bytes(v), moments.coded_vhat = bytes(vhat);
  moments.units_m = units;
  moments.units_v = v == nullptr ? nullptr : units + blocks_of(size);
  moments.key = key;
  return moments;
}

Hyper hyper_of(const OptimizerSettings& settings, double lr, double round) {
  const auto period = static_cast<double>(settings.period);
  const bool ends = std::fmod(round, period) == 0.0;
  if (settings.period > 1) round = 0.0;
  const double rest1 = round > 0.0 ? 1.0 - std::pow(settings.beta1, round) : 1.0;
  const double rest2 = round > 0.0 ? 1.0 - std::pow(settings.beta2, round) : 1.0;
  return {static_cast<float>(lr / rest1),
          static_cast<float>(settings.beta1),
          static_cast<float>(1.0 - settings.beta1),
          static_cast<float>(settings.beta2),
          static_cast<float>(1.0 - settings.beta2),
          static_cast<float>(settings.eps),
          static_cast<float>(1.0 / std::sqrt(rest2)),
          static_cast<float>(settings.eps_root * rest2),
          static_cast<float>(settings.drag()),
          static_cast<float>(settings.keep(lr)),
          static_cast<float>(1.0 / period),
          ends};
}

void set_model(Optimizer& optimizer, const store::Vector& x, const store::Vector& x_out, const RandomKey& key) {
  if (x.dtype == kBFloat16) {
    optimizer.half = {x.halves(), x_out.halves(), key};
  } else {
    optimizer.x = x.data, optimizer.x_out = x_out.data;
  }
}

Optimizer OptimizerState::planned(int64_t steps, double lr, const store::Vector& x, const store::Vector& x_out) const {
  const RandomKey key{seed_, static_cast<uint64_t>(steps), kServer};
  const Moments moments = moments_of({m_.data, v_.data, vhat_.data}, units_.data, size_, key);
  const double round = settings.bias_correction || settings.period > 1 ? static_cast<double>(steps + 1) : 0.0;
  Optimizer made{settings.kind, hyper_of(settings, lr, round), moments};
  set_model(made, x, x_out, {seed_, static_cast<uint64_t>(steps), kVersions});
  return made;
}

}  // namespace fastagg::engine
