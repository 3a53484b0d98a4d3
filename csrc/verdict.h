// What one read of an update found, and the resulting decision.
#pragma once

namespace fastagg {

// On a device it lies in the device's memory, so that a step can obey it although the host does not wait for it.
struct Verdict {
  double norm2, moved2, inner;  // |update|^2, |x - base|^2, (x - base).update
  double gain, weight;
  double keep;  // 1 or 0
};

// A verdict on its way to the host. Any thread may wait for it.
class Judgement {
 public:
  virtual ~Judgement() = default;
  virtual Verdict wait() = 0;
};

}  // namespace fastagg
