// What one read of an update found, and the resulting decision.
#pragma once

#include <cmath>

namespace fastagg {

// On a device it lies in the device's memory, so that a step can obey it although the host does not wait for it.
struct Verdict {
  double norm2, moved2, inner;  // |update|^2, |x - base|^2, (x - base).update
  double gain, weight;
  double keep;  // 1 or 0
};

// Puts what a device has found into what the host knew of an outcome: a receipt, or what a log says of it. `scales`: a
// step is made of one update, whose weight scales it.
template <typename Outcome>
void apply(const Verdict& verdict, bool scales, Outcome& to) {
  to.norm = verdict.norm2 >= 0.0 ? std::sqrt(verdict.norm2) : verdict.norm2;
  to.weight *= verdict.weight;
  if (!scales) return;
  to.applied = to.applied && verdict.keep != 0.0;
  to.step_size *= verdict.weight;
}

// A verdict on its way to the host. Any thread may wait for it.
class Judgement {
 public:
  virtual ~Judgement() = default;
  virtual Verdict wait() = 0;
};

}  // namespace fastagg
