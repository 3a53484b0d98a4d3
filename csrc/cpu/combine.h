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

// Memory for the threads that combine updates. A thread's desk has a block for every update. The memory is allocated
// before a step, because nothing may be allocated during the step.
class Desks {
 public:
  // Without `blocks` there are no desks, only memory for weights.
  explicit Desks(size_t updates, bool blocks = true)
      : taken_(blocks ? static_cast<size_t>(cpu::threads()) : 0),
        weights_(updates),
        rows_(taken_.size() * updates),
        memory_(rows_.size() * kBlock) {}

  // Reserves a desk while the object lives. The number of desks is the number of threads when they were made. If there
  // are more threads by now, some wait.
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

  // One factor for each update.
  float* weights() { return weights_.data(); }

 private:
  std::vector<std::atomic<bool>> taken_;
  std::vector<float> weights_;
  std::vector<const float*> rows_;
  std::vector<float> memory_;
};

namespace cpu {

// out = the combination of n <= 1,024 elements of each row. Each row is first multiplied by its own weight. There are 1
// to kMostCombined rows.
void combine_rows(const CombineSetting& how, const float* const* rows, int64_t count, const float* weights, int64_t n,
                  float* out);

// Makes elements at..at+n-1 of each update readable as floats, through the desk's rows.
struct Kernels;
void rows_at(const std::vector<WeightedUpdate>& held, const Kernels& table, int64_t at, int64_t n,
             const Desks::DeskPlace& place);

// out = the combination of whole updates. `desks` must have been made for the number of these updates.
void combine(const std::vector<WeightedUpdate>& held, const Combiner& combine, Desks& desks, float* out);

// Computes runner.h's pair_sums. Each update is read once.
std::vector<double> pair_sums(const std::vector<WeightedUpdate>& held, int64_t size, const uint8_t* wanted, bool apart);

}  // namespace cpu
}  // namespace fastagg
