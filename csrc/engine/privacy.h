// Differential privacy of a buffer: the key and the size of the noise in each step, and the norm to which updates are
// clipped.
//
// A step's noise follows from a secret key, and from the number and incarnation of the version that the step makes. An
// incarnation lasts from one start or load of the server to the next. The log has the incarnations, so a replayed step
// has the same noise. After a load, a version that is made a second time has another incarnation. So the noise of
// that version is new, whatever its updates are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../plan.h"
#include "archive.h"
#include "contribution.h"

namespace fastagg::engine {

class Privacy {
 public:
  struct Setting {
    double noise = 0.0;  // standard deviation of the noise on a sum, in multiples of the clipping norm; 0: no noise
    double clip = 1.0;   // the clipping norm of the first step
    // The clipping norm follows the `quantile` of the updates' norms. `rate`: how fast; 0: the norm is fixed.
    // `count_noise`: the standard deviation of the noise on the number of updates that were not clipped.
    double quantile = 0.5, rate = 0.0, count_noise = 0.0;
    std::vector<double> omega, theta;  // the weights of correlated noise; empty: the noise of each step is independent
  };
  Privacy(Setting setting, int64_t size, const std::shared_ptr<store::Memory>& memory);

  const Setting setting;
  double clip() const { return clip_; }
  void set_key(const ChaChaKey& key) { key_ = key; }
  // Returns a fingerprint of the key. The fingerprint shows whether two keys are equal, and nothing else.
  int64_t key_id() const;

  // Derives the key for the step that makes this version.
  void begin(uint64_t incarnation, int64_t version);
  // Plans the next clipping norm. `steps`: whether the updates make a step. `count`: the number of the step's updates.
  void plan(const Contributions& contributions, bool steps, int64_t count);
  Noise noise(double divisor) const;
  double bound(double divisor) const;  // returns a bound on the elements of the noise on (sum / divisor)
  void commit(bool stepped) noexcept;
  void fields(Archive& archive);
  int64_t nbytes() const { return static_cast<int64_t>(sums_.size()) * size_ * 4; }

 private:
  void stored_sums(Archive& archive);

  const int64_t size_;
  const std::shared_ptr<store::Memory> memory_;
  ChaChaKey key_{}, step_key_{};
  double clip_;
  int64_t within_ = 0;  // how many of the round's updates were not clipped
  struct NoiseVersion {
    int64_t incarnation = 0, number = 0;
  };
  NoiseVersion last_;                // the last version that was made with noise; number 0: none
  std::vector<store::Vector> sums_;  // the sums of past noise, if noise is correlated
  double clip_next_ = 0.0;
  int64_t within_next_ = 0;
  NoiseVersion next_;
};

}  // namespace fastagg::engine
