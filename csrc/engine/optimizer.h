// The server's optimizer: its settings, its moments, and the bounds of their elements (math/optimizers.h has the
// arithmetic).
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "../plan.h"
#include "../store/vector.h"

namespace fastagg::engine {

struct OptimizerSettings {
  int kind = 0;  // place in Optimizers
  double lr = 1.0, beta1 = 0.0, beta2 = 0.0, eps = 1.0;
  bool bias_correction = false;
  bool coded = false;  // whether moments are in 8 bits
  double eps_root = 0.0, weight_decay = 0.0;
  bool decoupled = false;   // whether weight decay is on the model, not on the direction
  double initial = 0.0;     // the first value of v and vhat
  int64_t period = 1;       // the period of a delayed momentum, in steps
  bool look_ahead = false;  // whether clients are sent x + lr*beta1*m

  double drag() const { return decoupled ? 0.0 : weight_decay; }
  double keep(double rate) const { return decoupled ? 1.0 - rate * weight_decay : 1.0; }
};

// The kernel's settings for a step of this rate. `round`: the number of the step for a bias correction or within a
// period; 0: none.
Hyper hyper_of(const OptimizerSettings& settings, double lr, double round);

// Stands for a client in the key of moments' rounding, so that the key differs from the keys of clients' rows.
constexpr uint32_t kServer = ~uint32_t{0};
// The same in the keys for rounding models that are sent, versions in bf16, and look-aheads.
constexpr uint32_t kDownloads = kServer - 1, kVersions = kServer - 2, kLookAheads = kServer - 3;

// Sets the model that an optimizer reads, and the model that it writes. `key` is for rounding to bf16.
void set_model(Optimizer& optimizer, const store::Vector& x, const store::Vector& x_out, const RandomKey& key);

// The addresses of m, v and vhat for a kernel. A moment that the optimizer does not have is null. If `units` is not
// null, the moments are in 8 bits.
Moments moments_of(const std::array<float*, 3>& all, float* units, int64_t size, const RandomKey& key);

class OptimizerState {
 public:
  // The state before the first step, for `size` parameters.
  OptimizerState(const OptimizerSettings& settings, int64_t size, uint64_t seed, std::shared_ptr<store::Memory> memory);

  // The moments by name: "m", "v", "vhat", and "units" for coded ones.
  struct Moment {
    const char* name;
    store::Vector data;
    int64_t nbytes;
  };
  std::vector<Moment> moments() const;
  int64_t nbytes() const;

  // Returns a bound on how much a step with this lr adds to an element. Sets `bounds` to the bounds of moments after
  // the step. The direction's elements are at most d. `along`: the bound of a step along the direction itself.
  double growth(double lr, double d, double along, MomentBounds& bounds) const;
  MomentBounds measured() const;  // bounds of the moments, which must be in host memory

  // The factor of m, a vector of fp32, in the look-ahead that clients are sent.
  double ahead() const { return settings.look_ahead ? settings.lr * settings.beta1 : 0.0; }
  const float* m() const { return m_.data; }
  uint64_t seed() const { return seed_; }

  // A copy that a step may change while this state stays as it is.
  OptimizerState copy() const;
  // The kernel's settings for step number `steps`.
  Optimizer planned(int64_t steps, double lr, const store::Vector& x, const store::Vector& x_out) const;

  OptimizerSettings settings;
  MomentBounds bounds;

 private:
  int64_t size_;
  uint64_t seed_;
  std::shared_ptr<store::Memory> memory_;
  store::Vector m_, v_, vhat_, units_;
};

}  // namespace fastagg::engine
