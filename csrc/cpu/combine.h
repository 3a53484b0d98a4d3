// Combines several updates element by element (math/combine.h), and computes sums over pairs of updates.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "../math/combine.h"
#include "../math/reduce.h"
#include "../plan.h"
#include "pool.h"

namespace fastagg {

// Working memory for the threads that combine updates. A desk is the memory of one thread. A desk has a block of
// elements for every update. All desks are allocated before a step, because nothing may be allocated during the step.
class Desks {
 public:
  // `blocks`: whether to make desks. Without them, there is only memory for weights.
  explicit Desks(size_t updates, bool blocks = true)
      : taken_(blocks ? static_cast<size_t>(cpu::threads()) : 0),
        weights_(updates),
        rows_(taken_.size() * updates),
        memory_(rows_.size() * kBlock) {}

  // Reserves a desk while the object lives. There are as many desks as there were threads when `Desks` was constructed.
  // If there are more threads now, the constructor may wait for a desk.
  class DeskPlace {
   public:
    explicit DeskPlace(Desks& of) : of_(of) {
      for (;; ++at_) {
        if (at_ == of_.taken_.size()) at_ = 0, std::this_thread::yield();
        if (!of_.taken_[at_].exchange(true, std::memory_order_acquire)) return;
      }
    }
    DeskPlace(const DeskPlace&) = delete;
    DeskPlace& operator=(const DeskPlace&) = delete;
    ~DeskPlace() { of_.taken_[at_].store(false, std::memory_order_release); }
    const float** rows() const { return of_.rows_.data() + first(); }
    float* block(size_t update) const { return of_.memory_.data() + (first() + update) * kBlock; }

   private:
    size_t first() const { return at_ * of_.weights_.size(); }
    Desks& of_;
    size_t at_ = 0;
  };

  // The factors of the updates, one for each update.
  float* weights() { return weights_.data(); }

 private:
  std::vector<std::atomic<bool>> taken_;
  std::vector<float> weights_;
  std::vector<const float*> rows_;
  std::vector<float> memory_;
};

namespace cpu {

// out = the combination of n <= 1,024 elements of 1 to kMostCombined rows. Each row is first multiplied by its weight.
void combine_rows(const CombineSetting& how, const float* const* rows, int64_t count, const float* weights, int64_t n,
                  float* out);

// Sets place.rows()[k] to elements at..at+n-1 of update k, read in place or copied to the desk as fp32.
struct Kernels;
void rows_at(const std::vector<WeightedUpdate>& held, const Kernels& table, int64_t at, int64_t n,
             const Desks::DeskPlace& place);

// out = the combination of all updates in `held`. `desks` must be made for this number of updates, and have the
// updates' factors in weights().
void combine(const std::vector<WeightedUpdate>& held, const Combiner& combine, Desks& desks, float* out);

// Computes Runner::pair_sums (runner.h). Each update is read once.
std::vector<double> pair_sums(const std::vector<WeightedUpdate>& held, int64_t size, const uint8_t* wanted, bool apart);

}  // namespace cpu
}  // namespace fastagg
