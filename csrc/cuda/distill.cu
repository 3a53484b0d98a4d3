// FedEcho's distillation loss on the GPU: one block of threads for each row, which it reads twice (the second time from
// the cache while a row fits there). Element math is csrc/math/distill.h; sums are per thread and folded in a fixed
// tree, so results do not change from run to run, but they are not the CPU's to the last bit.
//
// Bytes per logit: targets 8, loss and gradient 12.
#include <math_constants.h>

#include "../math/distill.h"
#include "launch.cuh"

namespace fastagg::cuda {
namespace {

struct Pair {
  double a, b;
};

__device__ __forceinline__ Pair sum_of_block(Pair value) {
  __shared__ Pair partial[kWarps];
  for (int half = kWarp / 2; half > 0; half /= 2) {
    value.a += __shfl_down_sync(kAll, value.a, half);
    value.b += __shfl_down_sync(kAll, value.b, half);
  }
  __syncthreads();  // the last call's readers are done with `partial`
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  Pair total{0.0, 0.0};
  for (int w = 0; w < kWarps; ++w) {
    total.a += partial[w].a;
    total.b += partial[w].b;
  }
  return total;
}

// The largest value and the first place where it is.
struct Most {
  float value;
  long long at;
};

__device__ __forceinline__ Most larger(Most a, Most b) {
  return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}

__device__ __forceinline__ Most most_of_block(Most value) {
  __shared__ Most partial[kWarps];
  for (int half = kWarp / 2; half > 0; half /= 2)
    value = larger(value, {__shfl_down_sync(kAll, value.value, half), __shfl_down_sync(kAll, value.at, half)});
  __syncthreads();
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  Most total = partial[0];
  for (int w = 1; w < kWarps; ++w) total = larger(total, partial[w]);
  return total;
}

__device__ __forceinline__ Most most_of_row(const float* logits, float scale, int64_t classes) {
  Most most{-CUDART_INF_F, 0};
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) most = larger(most, {scale * logits[i], i});
  return most_of_block(most);
}

__device__ __forceinline__ float largest_of_row(const float* logits, int64_t classes) {
  __shared__ float partial[kWarps];
  float most = -CUDART_INF_F;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) most = fmaxf(most, logits[i]);
  for (int half = kWarp / 2; half > 0; half /= 2) most = fmaxf(most, __shfl_down_sync(kAll, most, half));
  __syncthreads();
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = most;
  __syncthreads();
  most = partial[0];
  for (int w = 1; w < kWarps; ++w) most = fmaxf(most, partial[w]);
  return most;
}

__global__ void __launch_bounds__(kThreads)
    targets_kernel(const float* logits, float scale, int64_t rows, int64_t classes, float* probs, int64_t* labels,
                   double* entropy) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const float* in = logits + r * classes;
    float* out = probs + r * classes;
    const Most most = most_of_row(in, scale, classes);
    Pair sums{0.0, 0.0};
    for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
      const float t = scale * in[i] - most.value, e = exp_negative(t);
      sums.a += e;
      sums.b += weighed(e, t);
    }
    sums = sum_of_block(sums);
    const float inverse = static_cast<float>(1.0 / sums.a);
    for (int64_t i = threadIdx.x; i < classes; i += kThreads)
      out[i] = exp_negative(scale * in[i] - most.value) * inverse;
    if (threadIdx.x == 0) {
      const double found = log_positive(sums.a) - sums.b / sums.a;
      labels[r] = most.at;
      entropy[r] = found < 0.0 ? 0.0 : found;
    }
  }
}

// Nobody can be told of a row or a label that is out of range without being waited for: its loss is NaN, and nothing is
// read there.
__device__ __forceinline__ bool known(const int64_t* labels, int64_t from, int64_t teachers, int64_t classes) {
  return from >= 0 && from < teachers && labels[from] < classes && (labels[from] >= 0 || labels[from] == kIgnored);
}

// One block: how many rows count, and alpha (Eq. 4).
__global__ void __launch_bounds__(kThreads, 2)
    mixing_kernel(const int64_t* labels, const double* entropy, const int64_t* which, int64_t teachers, int64_t rows,
                  int64_t classes, double alpha_min, double alpha_max, double* mix) {
  Pair sums{0.0, 0.0};
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) {
    const int64_t from = which == nullptr ? r : which[r];
    if (!known(labels, from, teachers, classes) || labels[from] == kIgnored) continue;
    sums.a += 1.0;
    sums.b += entropy[from];
  }
  sums = sum_of_block(sums);
  if (threadIdx.x == 0) {
    const double share = sums.a > 0.0 ? 1.0 / sums.a : 0.0;
    mix[0] = mixing(sums.b * share, classes, alpha_min, alpha_max);
    mix[1] = share;
  }
}

__global__ void __launch_bounds__(kThreads)
    distill_kernel(const float* __restrict__ logits, const float* __restrict__ probs, const int64_t* labels,
                   const double* entropy, const int64_t* which, int64_t teachers, int64_t rows, int64_t classes,
                   const double* mix, double* losses, float* __restrict__ gradient) {
  const double alpha = mix[0], share = mix[1];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t from = which == nullptr ? r : which[r];
    float* out = gradient + r * classes;
    const bool counts = known(labels, from, teachers, classes);
    if (!counts || labels[from] == kIgnored) {
      for (int64_t i = threadIdx.x; i < classes; i += kThreads) out[i] = 0.0f;
      if (threadIdx.x == 0) losses[r] = counts ? 0.0 : CUDART_NAN;
      continue;
    }
    const int64_t label = labels[from];
    const float* in = logits + r * classes;
    const float* p = probs + from * classes;
    const float most = largest_of_row(in, classes);
    Pair sums{0.0, 0.0};
    for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
      const float t = in[i] - most;
      sums.a += exp_negative(t);
      sums.b += weighed(p[i], t);
    }
    sums = sum_of_block(sums);
    const float inverse = static_cast<float>(1.0 / sums.a), a = static_cast<float>(alpha);
    const float part = static_cast<float>(share), hard = static_cast<float>((1.0 - alpha) * share);
    for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
      const float g = logit_gradient(exp_negative(in[i] - most), inverse, p[i], a, part);
      out[i] = i == label ? g - hard : g;
    }
    if (threadIdx.x == 0) {
      const double t_label = static_cast<double>(in[label]) - static_cast<double>(most);
      losses[r] = distillation(alpha, entropy[from], sums.b, log_positive(sums.a), t_label) * share;
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2) mean_kernel(const double* losses, int64_t rows, float* loss) {
  Pair sums{0.0, 0.0};
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) sums.a += losses[r];
  sums = sum_of_block(sums);
  if (threadIdx.x == 0) *loss = static_cast<float>(sums.a);
}

}  // namespace

void soft_targets(const float* logits, double scale, int64_t rows, int64_t classes, float* probs, int64_t* labels,
                  double* entropy, const Where& where) {
  if (rows == 0) return;
  const DeviceGuard guard(where.device);
  launch("soft targets", where, grid(rows, where.device), targets_kernel, logits, static_cast<float>(scale), rows,
         classes, probs, labels, entropy);
}

void distill(const float* logits, const float* probs, const int64_t* labels, const double* entropy,
             const int64_t* which, int64_t teachers, int64_t rows, int64_t classes, double alpha_min, double alpha_max,
             double* scratch, float* loss, float* gradient, const Where& where) {
  const DeviceGuard guard(where.device);
  double* losses = scratch + 2;
  launch("distillation: alpha", where, 1, mixing_kernel, labels, entropy, which, teachers, rows, classes, alpha_min,
         alpha_max, scratch);
  if (rows > 0)
    launch("distillation: loss", where, grid(rows, where.device), distill_kernel, logits, probs, labels, entropy, which,
           teachers, rows, classes, scratch, losses, gradient);
  launch("distillation: mean", where, 1, mean_kernel, losses, rows, loss);
}

}  // namespace fastagg::cuda
