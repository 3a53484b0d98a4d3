#include "optimizer.h"

#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "../math/optimizers.h"

namespace fastagg::engine {
namespace {

constexpr uint32_t kServer = ~uint32_t{0};  // a key that separates the rounding of moments from that of clients' rows

int64_t blocks_of(int64_t size) { return (size + kScaleBlock - 1) / kScaleBlock; }

double norm_of(const store::Vector& vector, int64_t size) {
  if (!vector) return 0.0;
  Update update;
  update.add(vector.data, size, kFloat32);
  return std::sqrt(cpu::sum_squares(update));
}

}  // namespace

OptimizerState::OptimizerState(const OptimizerSettings& given, int64_t size, uint64_t seed,
                               std::shared_ptr<store::Memory> memory)
    : settings(given), size_(size), seed_(seed), memory_(std::move(memory)) {
  const auto zeros = [&](int64_t nbytes) {
    store::Vector made = memory_->bytes(nbytes);
    memory_->zero(made.data, nbytes);
    return made;
  };
  const int64_t blocks = blocks_of(size);
  const int64_t nbytes = settings.coded ? blocks * kScaleBlock : size * static_cast<int64_t>(sizeof(float));
  visit_at(settings.kind, Optimizers{}, [&](auto one) {
    using Kind = decltype(one);
    if (Kind::kM) m_ = zeros(nbytes);
    if (Kind::kV) v_ = zeros(nbytes);
    if (Kind::kVhat) vhat_ = zeros(nbytes);
    if (settings.coded && Kind::kM) units_ = zeros((Kind::kV ? 2 : 1) * blocks * static_cast<int64_t>(sizeof(float)));
    settings.coded = settings.coded && Kind::kM;
  });
}

std::vector<OptimizerState::Moment> OptimizerState::moments() const {
  const int64_t blocks = blocks_of(size_);
  const int64_t nbytes = settings.coded ? blocks * kScaleBlock : size_ * static_cast<int64_t>(sizeof(float));
  std::vector<Moment> found;
  if (m_) found.push_back({"m", m_, nbytes});
  if (v_) found.push_back({"v", v_, nbytes});
  if (vhat_) found.push_back({"vhat", vhat_, nbytes});
  if (units_) found.push_back({"units", units_, (v_ ? 2 : 1) * blocks * static_cast<int64_t>(sizeof(float))});
  return found;
}

int64_t OptimizerState::nbytes() const {
  int64_t sum = 0;
  for (const Moment& one : moments()) sum += one.nbytes;
  return sum;
}

double OptimizerState::growth(double lr, double d, double along, MomentBounds& next) const {
  double found = along;
  next = bounds;
  visit_at(settings.kind, Optimizers{}, [&](auto one) {
    using Kind = decltype(one);
    const double reach = Kind::reach({settings.beta1, settings.beta2, settings.eps}, d, next);
    if (!Kind::kAlong) found = std::abs(lr) * reach;
  });
  return found;
}

MomentBounds OptimizerState::measured() const {
  if (!settings.coded) return {norm_of(m_, size_), std::max(norm_of(v_, size_), norm_of(vhat_, size_))};
  // The largest codes mean less than these multiples of a block's unit (math/moments.h).
  const int64_t blocks = blocks_of(size_);
  const auto largest = [&](int64_t begin) {
    return blocks == 0 ? 0.0
                       : static_cast<double>(*std::max_element(units_.data + begin, units_.data + begin + blocks));
  };
  return {0x1p17 * largest(0), v_ ? 0x1p33 * largest(blocks) : 0.0};
}

OptimizerState OptimizerState::copy() const {
  OptimizerState made = *this;
  for (auto [to, from] : {std::pair{&made.m_, &m_}, {&made.v_, &v_}, {&made.vhat_, &vhat_}, {&made.units_, &units_}}) {
    if (!*from) continue;
    for (const Moment& one : moments()) {
      if (one.data.data != from->data) continue;
      *to = memory_->bytes(one.nbytes);
      memory_->copy(to->data, from->data, one.nbytes);
    }
  }
  return made;
}

Moments OptimizerState::struct_of() const {
  if (!settings.coded) return {m_.data, v_.data, vhat_.data};
  const auto bytes = [](const store::Vector& of) { return reinterpret_cast<uint8_t*>(of.data); };
  Moments found;
  found.coded_m = bytes(m_), found.coded_v = bytes(v_), found.coded_vhat = bytes(vhat_);
  found.units_m = units_.data;
  found.units_v = v_ ? units_.data + blocks_of(size_) : nullptr;
  found.key = {seed_, 0, kServer};
  return found;
}

Optimizer OptimizerState::planned(int64_t steps, double lr, const float* x, float* x_out) const {
  double root_scale = 1.0;
  if (settings.bias_correction) {
    const auto round = static_cast<double>(steps + 1);
    lr = lr / (1.0 - std::pow(settings.beta1, round));
    root_scale = 1.0 / std::sqrt(1.0 - std::pow(settings.beta2, round));
  }
  const Hyper hyper{static_cast<float>(lr),
                    static_cast<float>(settings.beta1),
                    static_cast<float>(1.0 - settings.beta1),
                    static_cast<float>(settings.beta2),
                    static_cast<float>(1.0 - settings.beta2),
                    static_cast<float>(settings.eps),
                    static_cast<float>(root_scale)};
  Moments moments = struct_of();
  moments.key.step = static_cast<uint64_t>(steps);
  return {settings.kind, hyper, moments, x, x_out};
}

}  // namespace fastagg::engine
