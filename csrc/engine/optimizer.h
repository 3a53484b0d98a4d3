// The server's optimizer: its settings, its moments, and bounds on the elements of the moments. math/optimizers.h has
// the arithmetic.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "../plan.h"
#include "../store/vector.h"

namespace fastagg::engine {

struct OptimizerSettings {
  int kind = 0;  // index in Optimizers
  double lr = 1.0, beta1 = 0.0, beta2 = 0.0, eps = 1.0;
  bool bias_correction = false;
  bool coded = false;  // whether moments are stored in 8 bits
  double eps_root = 0.0, weight_decay = 0.0;
  bool decoupled = false;   // whether weight decay shrinks the model, instead of being added to the direction
  double initial = 0.0;     // the elements of v and vhat before the first step
  int64_t period = 1;       // the number of steps from one change of a delayed momentum to the next; 1: no delay
  bool look_ahead = false;  // whether clients are sent x + lr*beta1*m instead of x

  // Weight decay: the model times `drag` is subtracted from the direction. The model times `keep` replaces the model.
  double drag() const { return decoupled ? 0.0 : weight_decay; }
  double keep(double rate) const { return decoupled ? 1.0 - rate * weight_decay : 1.0; }
};

// Returns the kernel's settings for a step. `lr`: the learning rate. `round`: the number of the step, from 1, for bias
// correction or a period; 0: the optimizer has neither.
Hyper hyper_of(const OptimizerSettings& settings, double lr, double round);

// Keys for rounding moments have this number in place of a client's. No client has the number, so these keys differ
// from the keys for clients' rows.
constexpr uint32_t kServer = ~uint32_t{0};
// Keys for rounding sent models, for rounding versions to bf16, and for look-aheads have these numbers, in this order.
constexpr uint32_t kDownloads = kServer - 1, kVersions = kServer - 2, kLookAheads = kServer - 3;

// Sets the model that an optimizer reads (`x`), and the model that it writes (`x_out`). `key`: for rounding to bf16.
void set_model(Optimizer& optimizer, const store::Vector& x, const store::Vector& x_out, const RandomKey& key);

// Returns the moments in the form that a kernel needs. `all`: the addresses of m, v and vhat; null: the optimizer lacks
// the moment. `units`: the scales of moments in 8 bits; null: the moments are fp32.
Moments moments_of(const std::array<float*, 3>& all, float* units, int64_t size, const RandomKey& key);

class OptimizerState {
 public:
  // Creates the state before the first step. `size`: the number of parameters.
  OptimizerState(const OptimizerSettings& settings, int64_t size, uint64_t seed, std::shared_ptr<store::Memory> memory);

  // A moment. Its name is "m", "v", "vhat", or "units" for the scales of moments in 8 bits.
  struct Moment {
    const char* name;
    store::Vector data;
    int64_t nbytes;
  };
  std::vector<Moment> moments() const;
  int64_t nbytes() const;

  // Returns a bound on how much a step with this lr adds to an element of the model. Includes a look-ahead. Sets
  // `bounds` to the moments' bounds after the step. `d`: a bound on the direction's elements. `along`: the result for
  // an optimizer that steps along the direction itself, without a look-ahead.
  double growth(double lr, double d, double along, MomentBounds& bounds) const;
  MomentBounds measured() const;  // computes bounds of the moments, which must be in host memory

  // Returns the factor of m in the look-ahead that clients are sent; 0: no look-ahead.
  double ahead() const { return settings.look_ahead ? settings.lr * settings.beta1 : 0.0; }
  const float* m() const { return m_.data; }
  uint64_t seed() const { return seed_; }

  // Returns a copy with memory of its own. A step may change the copy without changing this state.
  OptimizerState copy() const;
  // Returns the optimizer for a kernel. `steps`: the number of steps so far. `x`: the model. `x_out`: the next model.
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
