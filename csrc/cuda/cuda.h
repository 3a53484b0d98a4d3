// CUDA launches. Plain C++ on this side, so that the bindings need no CUDA header; errors are std::runtime_error
// with the runtime's own words and the name of the launch.
#pragma once

#include <cstdint>

#include "../math/optimizer.h"

namespace fastagg::cuda {

int runtime_version();
int device_count();  // 0 where no driver or no device answers

// One optimizer step on a given direction, 36 bytes per parameter for AMSGrad. Asynchronous on `stream`
// (a cudaStream_t), on device index `device`. x_out may be x. Any alignment; 16-byte accesses where all allow it.
void step(int64_t n, const float* direction, OptimizerKind kind, const Hyper& hyper, float* m, float* v, float* vhat,
          const float* x, float* x_out, int device, void* stream);

// The distillation loss, see csrc/cpu/distill.h. `loss` is one float in device memory, `scratch` 2 + rows doubles.
void soft_targets(const float* logits, double scale, int64_t rows, int64_t classes, float* probs, int64_t* labels,
                  double* entropy, int device, void* stream);
void distill(const float* logits, const float* probs, const int64_t* labels, const double* entropy,
             const int64_t* which, int64_t rows, int64_t classes, double alpha_min, double alpha_max, double* scratch,
             float* loss, float* gradient, int device, void* stream);

}  // namespace fastagg::cuda
