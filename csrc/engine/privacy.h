// The noise of a buffer that hides single clients: its key, its size, and the norm to which updates are clipped.
//
// A step's noise follows from a secret key, and from the number and incarnation of the version that the step makes. A
// replayed log has the same incarnations, so the same steps have the same noise. Loading a state begins a new
// incarnation, so a version that is made a second time has new noise, whatever its updates are.
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
    double noise = 0.0;  // standard deviation of a sum's noise, in multiples of the clipping norm
    double clip = 1.0;   // the first clipping norm
    double quantile = 0.5, rate = 0.0, count_noise = 0.0;
    std::vector<double> omega, theta;  // the weights of correlated noise; empty: the noise of steps is independent
  };
  Privacy(Setting setting, int64_t size, const std::shared_ptr<store::Memory>& memory);

  const Setting setting;
  double clip() const { return clip_; }
  void set_key(const ChaChaKey& key) { key_ = key; }
  // A fingerprint of the key, which only shows whether another key is the same.
  int64_t key_id() const;

  // Derives the key of the step that makes this version.
  void begin(uint64_t incarnation, int64_t version);
  // Plans the noise of a step along the sum of these updates and earlier ones.
  void plan(const Contributions& contributions, bool steps, int64_t count);
  Noise noise(double divisor) const;
  double bound(double divisor) const;  // a bound on the elements of a mean's noise
  void commit(bool stepped) noexcept;
  void fields(Archive& archive);
  int64_t nbytes() const { return static_cast<int64_t>(sums_.size()) * size_ * 4; }

 private:
  void stored_sums(Archive& archive);

  const int64_t size_;
  const std::shared_ptr<store::Memory> memory_;
  ChaChaKey key_{}, step_key_{};
  double clip_;
  int64_t within_ = 0;  // the number of updates in the sum that were not clipped
  struct NoiseVersion {
    int64_t incarnation = 0, number = 0;
  };
  NoiseVersion last_;                // the version of the last noise; 0: none
  std::vector<store::Vector> sums_;  // the sums of past noise, if noise is correlated
  double clip_next_ = 0.0;
  int64_t within_next_ = 0;
  NoiseVersion next_;
};

}  // namespace fastagg::engine
