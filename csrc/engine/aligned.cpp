#include "aligned.h"

#include <algorithm>
#include <cmath>

namespace fastagg::engine {

AlignedDirection::AlignedDirection(double sign, const Setting& setting, std::vector<int64_t> ends)
    : SingleDirection(sign, false, 0.0), setting_(setting), tensors_(std::move(ends)), turns_(tensors_.ends().size()) {
  is.tensors = &tensors_;
}

Outcome AlignedDirection::plan(const Contributions& contributions, bool closes, ReadMode mode) {
  const Outcome outcome = SingleDirection::plan(contributions, closes, mode);
  double squares = 0.0;
  for (size_t i = 0; i < turns_.size(); ++i) {
    turns_[i] = turn_of(i, direction_.gain, weight_);
    const cpu::Tensors::TensorSums sums = tensors_.of(i);
    const double size = std::abs(turns_[i].weight * direction_.gain) * std::sqrt(sums.update) +
                        std::abs(static_cast<double>(turns_[i].along)) * std::sqrt(sums.m);
    squares += size * size;
  }
  direction_.turns = &turns_;
  bound_ = std::sqrt(squares);
  return outcome;
}

// Computes the factors of a tensor (equations 7 to 15 of the paper that aligned.h names). `by`: the update's clipping
// factor times the direction's sign. `weight`: a factor of the whole direction.
Turn AlignedDirection::turn_of(size_t tensor, double by, double weight) const {
  const auto& [rho, c_ok, k_s, k_d, kappa, beta_max, eps] = setting_;
  const cpu::Tensors::TensorSums sums = tensors_.of(tensor);
  const double size = std::abs(by) * std::sqrt(sums.update), m = std::sqrt(sums.m);
  double keep = 1.0, along = 0.0;
  if (size >= eps && m >= eps) {
    const double c = by * sums.inner / (size * m), conf = size / (size + kappa * m + eps);
    if (c < 0.0) {
      along = -std::min(k_s * -c * conf, beta_max) * c * size / m;
    } else if (c < c_ok) {
      const double l = std::min(k_d * (1.0 - c) * conf, 1.0);
      const double mixed = std::sqrt((1.0 - l) * (1.0 - l) + l * l + 2.0 * l * (1.0 - l) * c);
      keep = (1.0 - l) / mixed;
      along = l / mixed * size / m;
    }
  }
  return {tensors_.ends()[tensor], static_cast<float>(weight * rho * keep), static_cast<float>(weight * rho * along)};
}

}  // namespace fastagg::engine
