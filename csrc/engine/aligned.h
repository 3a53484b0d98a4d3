// The direction of HeLoCo (arXiv 2606.00271, Algorithm 2). Each update makes a step. Before the step, a tensor
// of the update is turned towards the optimizer's momentum if the angle between tensor and momentum is too large.
#pragma once

#include <vector>

#include "../cpu/cpu.h"
#include "single.h"

namespace fastagg::engine {

class AlignedDirection : public SingleDirection {
 public:
  struct Setting {  // the paper's constants
    double rho, c_ok, k_s, k_d, kappa, beta_max, eps;
  };
  // `ends`: for each tensor, the index after its last element in the model's vector.
  AlignedDirection(double sign, const Setting& setting, std::vector<int64_t> ends);
  Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) override;
  int64_t nbytes() const override { return tensors_.nbytes(); }

 private:
  Turn turn_of(size_t tensor, double by, double weight) const;

  const Setting setting_;
  cpu::Tensors tensors_;
  std::vector<Turn> turns_;
};

}  // namespace fastagg::engine
