// CUDA launches. Plain C++ on this side, so that the bindings need no CUDA header; errors have the runtime's own words
// and the name of the launch.
//
// Everything is asynchronous on `Where`'s stream. Types are the CPU's own (csrc/cpu/step.h, cached_step.h), with
// addresses in device memory, and results agree with the CPU bit for bit.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "../cpu/cached_step.h"
#include "../cpu/step.h"

namespace fastagg::cuda {

class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Where {
  int device;
  void* stream;  // a cudaStream_t
};

int runtime_version();
int device_count();  // 0 where no driver or no device answers
void compute_capability(int device, int* major, int* minor);

// What one read of an update found, and what follows from it; in device memory, so that a step can obey it without
// anybody waiting. A step multiplies its gain and weight by these, and takes an update that is not kept for zero.
struct Verdict {
  double norm2, moved2, inner;  // |update|^2, |x - base|^2, (x - base).update
  double gain, weight;
  double keep;  // 1 or 0
};

// What the verdict shall follow from; 0 for none.
struct Rules {
  double clip_norm;  // gain = min(1, clip_norm/|update|)
  double lam, eps,
      gamma_max;  // weight = lam/(gamma + eps), gamma = |x - base|/(gain*|update|); keep gamma <= gamma_max
};

// Reads groups first..last-1 (reduce.h) of the update, and of x and base where they are not null. `partial` has room
// for three sums of every group; `counter` is zero before and after. With `finish` the verdict follows from all groups.
void norms(const cpu::Update& update, const float* x, const float* base, bool wants_inner, const Rules& rules,
           int64_t first, int64_t last, bool finish, double* partial, unsigned* counter, Verdict* verdict,
           const Where& where);

// csrc/cpu/step.h. Gains and weights come in double: the verdict's are multiplied in before rounding.
void step(const cpu::Update& update, const cpu::Direction& direction, double gain, double weight,
          const cpu::Optimizer& optimizer, const Verdict* verdict, const Where& where);
void accumulate(const cpu::Update& update, const float* acc, double weight, float* acc_out, const Verdict* verdict,
                const Where& where);

// csrc/cpu/cached_step.h
void cached_step(const cpu::Update& update, const cpu::Rows& rows, const cpu::CachedDirection& direction, double gain,
                 const cpu::Optimizer& optimizer, const Verdict* verdict, const Where& where);
void recompute_sum(int64_t size, const cpu::Rows& rows, const float* weights, int64_t slots, const cpu::RunningSum& sum,
                   int64_t first, int64_t last, const Where& where);
void read_row(int64_t size, const cpu::Rows& rows, int64_t slot, float* out, const Where& where);

// csrc/cpu/norms.h; `partial` has room for parts*(k + 1024) floats.
void sketch(const cpu::Update& update, int64_t k, uint64_t seed, float* partial, float* out, const Where& where);

// The distillation loss, see csrc/cpu/distill.h. `loss` is one float in device memory, `scratch` 2 + rows doubles.
void soft_targets(const float* logits, double scale, int64_t rows, int64_t classes, float* probs, int64_t* labels,
                  double* entropy, const Where& where);
void distill(const float* logits, const float* probs, const int64_t* labels, const double* entropy,
             const int64_t* which, int64_t teachers, int64_t rows, int64_t classes, double alpha_min, double alpha_max,
             double* scratch, float* loss, float* gradient, const Where& where);

}  // namespace fastagg::cuda
