// The noise of a buffer that hides single clients: what it is drawn from, how much of it, and which norm updates are
// clipped to.
//
// A step's noise follows from a secret key, the incarnation of the version that it makes, and that version. A log that
// is executed again has the same incarnations, so the noise of the same steps is the same. Whoever loads a state begins
// a new incarnation, so a version that is made a second time has new noise, whatever its updates are.
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
    double noise = 0.0;  // standard deviation of a sum's, by the clipping norm
    double clip = 1.0;   // at first
    // Adaptive clipping: the share of updates that are not clipped, which it aims at, the rate, and the standard
    // deviation of the count's noise. A rate of 0: the norm stays.
    double quantile = 0.5, rate = 0.0, count_noise = 0.0;
    std::vector<double> omega, theta;  // correlated noise; none: it is independent between steps
  };
  Privacy(Setting setting, int64_t size, const std::shared_ptr<store::Memory>& memory);

  const Setting setting;
  double clip() const { return clip_; }
  void set_key(const ChaChaKey& key) { key_ = key; }
  // A fingerprint of the key. It says whether another key is the same, and nothing else.
  int64_t key_id() const;

  // The next step makes this version.
  void begin(uint64_t incarnation, int64_t version);
  // The noise of a step along the sum of these updates and earlier ones, divided by so much.
  void plan(const Contributions& contributions, bool steps, int64_t count);
  Noise noise(double divisor) const;
  double bound(double divisor) const;  // no element of the noise of a mean is larger
  void commit(bool stepped) noexcept;
  void fields(Archive& archive);
  int64_t nbytes() const { return static_cast<int64_t>(sums_.size()) * size_ * 4; }

 private:
  void stored_sums(Archive& archive);

  const int64_t size_;
  const std::shared_ptr<store::Memory> memory_;
  ChaChaKey key_{}, step_key_{};
  double clip_;
  int64_t within_ = 0;  // updates in the sum that were not clipped
  struct NoiseVersion {
    int64_t incarnation = 0, number = 0;
  };
  NoiseVersion last_;                // that the last noise was for; 0: there was none
  std::vector<store::Vector> sums_;  // of past noise, for correlated noise
  // Planned:
  double clip_next_ = 0.0;
  int64_t within_next_ = 0;
  NoiseVersion next_;
};

}  // namespace fastagg::engine
