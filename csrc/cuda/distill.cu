// FedEcho's distillation loss on the GPU (math/distill.h). One block of threads processes a row at a time. The threads
// read the row several times, from the cache if the row fits there. Each thread has its own sums. The threads' sums are
// then added in a fixed order. So results are the same in every run, but their last bits may differ from the CPU's.
//
// Bytes of memory traffic per logit: 8 for the targets, 12 for loss and gradient.
#include <math_constants.h>

#include "../math/distill.h"
#include "launch.cuh"

namespace fastagg::cuda {
namespace {

// sum_of_block, most_of_block and largest_of_row reduce values over a block of threads. Each function has its own
// shared memory and one barrier. Between two calls of the same function, another of them must be called. At the other
// function's barrier, all threads have read the first function's memory.
struct Pair {
  double a, b;
};

__device__ __forceinline__ Pair sum_of_block(Pair value) {
  __shared__ Pair partial[kWarps];
  for (int half = kWarp / 2; half > 0; half /= 2) {
    value.a += __shfl_down_sync(kAll, value.a, half);
    value.b += __shfl_down_sync(kAll, value.b, half);
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  Pair total{0.0, 0.0};
  for (int w = 0; w < kWarps; ++w) {
    total.a += partial[w].a;
    total.b += partial[w].b;
  }
  return total;
}

// A row's largest value, and the first place that has this value.
struct RowMaximum {
  float value;
  long long at;
};

__device__ __forceinline__ RowMaximum larger(RowMaximum a, RowMaximum b) {
  return b.value > a.value || (b.value == a.value && b.at < a.at) ? b : a;
}

__device__ __forceinline__ RowMaximum most_of_block(RowMaximum value) {
  __shared__ RowMaximum partial[kWarps];
  for (int half = kWarp / 2; half > 0; half /= 2)
    value = larger(value, {__shfl_down_sync(kAll, value.value, half), __shfl_down_sync(kAll, value.at, half)});
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  RowMaximum total = partial[0];
  for (int w = 1; w < kWarps; ++w) total = larger(total, partial[w]);
  return total;
}

__device__ __forceinline__ RowMaximum most_of_row(const float* logits, float scale, int64_t classes) {
  RowMaximum largest{-CUDART_INF_F, 0};
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) largest = larger(largest, {scale * logits[i], i});
  return most_of_block(largest);
}

__device__ __forceinline__ float largest_of_row(const float* logits, int64_t classes) {
  __shared__ float partial[kWarps];
  float largest = -CUDART_INF_F;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) largest = fmaxf(largest, logits[i]);
  for (int half = kWarp / 2; half > 0; half /= 2) largest = fmaxf(largest, __shfl_down_sync(kAll, largest, half));
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = largest;
  __syncthreads();
  largest = partial[0];
  for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, partial[w]);
  return largest;
}

__global__ void __launch_bounds__(kThreads, 2) targets_kernel(Logits logits, float scale, Targets t) {
  const int64_t classes = logits.classes;
  for (int64_t r = blockIdx.x; r < logits.rows; r += gridDim.x) {
    const float* in = logits.values + r * classes;
    float* out = t.probs + r * classes;
    const RowMaximum largest = most_of_row(in, scale, classes);
    Pair sums{0.0, 0.0};
    for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
      const float less = scale * in[i] - largest.value, e = exp_negative(less);
      sums.a += e;
      sums.b += weighed(e, less);
    }
    sums = sum_of_block(sums);
    const float inverse = static_cast<float>(1.0 / sums.a);
    for (int64_t i = threadIdx.x; i < classes; i += kThreads)
      out[i] = exp_negative(scale * in[i] - largest.value) * inverse;
    if (threadIdx.x == 0) {
      const double entropy = log_positive(sums.a) - sums.b / sums.a;
      t.labels[r] = largest.at;
      t.entropy[r] = entropy < 0.0 ? 0.0 : entropy;
    }
  }
}

// Returns whether `from` is a row of the teachers, and its label is a class or kIgnored. The host does not wait for the
// kernel, so the kernel cannot raise an error. Instead the loss becomes NaN, and nothing out of range is read.
__device__ __forceinline__ bool known(const Targets& t, int64_t classes, int64_t from) {
  return from >= 0 && from < t.rows && t.labels[from] < classes && (t.labels[from] >= 0 || t.labels[from] == kIgnored);
}

__device__ __forceinline__ int64_t teacher_of(const Loss& l, int64_t r) { return l.which == nullptr ? r : l.which[r]; }

// Counts the rows whose label is a class. Writes alpha (Eq. 4) and 1/count (0 for no rows) to the scratch.
__global__ void __launch_bounds__(kThreads, 2) mixing_kernel(Logits z, Targets t, Loss l) {
  Pair sums{0.0, 0.0};
  for (int64_t r = threadIdx.x; r < z.rows; r += kThreads) {
    const int64_t from = teacher_of(l, r);
    if (!known(t, z.classes, from) || t.labels[from] == kIgnored) continue;
    sums.a += 1.0;
    sums.b += t.entropy[from];
  }
  sums = sum_of_block(sums);
  if (threadIdx.x == 0) {
    const double share = sums.a > 0.0 ? 1.0 / sums.a : 0.0;
    l.scratch[0] = mixing(sums.b * share, z.classes, l.alpha_min, l.alpha_max);
    l.scratch[1] = share;
  }
}

__global__ void __launch_bounds__(kThreads, 2) distill_kernel(Logits z, Targets t, Loss l) {
  const double alpha = l.scratch[0], share = l.scratch[1];
  double* losses = l.scratch + 2;
  for (int64_t r = blockIdx.x; r < z.rows; r += gridDim.x) {
    const int64_t from = teacher_of(l, r);
    float* __restrict__ out = l.gradient + r * z.classes;
    const bool counts = known(t, z.classes, from);
    if (!counts || t.labels[from] == kIgnored) {
      for (int64_t i = threadIdx.x; i < z.classes; i += kThreads) out[i] = 0.0f;
      if (threadIdx.x == 0) losses[r] = counts ? 0.0 : CUDART_NAN;
      continue;
    }
    const int64_t label = t.labels[from];
    const float* __restrict__ in = z.values + r * z.classes;
    const float* __restrict__ p = t.probs + from * z.classes;
    const float largest = largest_of_row(in, z.classes);
    Pair sums{0.0, 0.0};
    for (int64_t i = threadIdx.x; i < z.classes; i += kThreads) {
      const float less = in[i] - largest;
      sums.a += exp_negative(less);
      sums.b += weighed(p[i], less);
    }
    sums = sum_of_block(sums);
    const float inverse = static_cast<float>(1.0 / sums.a), a = static_cast<float>(alpha);
    const float part = static_cast<float>(share), hard = static_cast<float>((1.0 - alpha) * share);
    for (int64_t i = threadIdx.x; i < z.classes; i += kThreads) {
      const float g = logit_gradient(exp_negative(in[i] - largest), inverse, p[i], a, part);
      out[i] = i == label ? g - hard : g;
    }
    if (threadIdx.x == 0) {
      const double t_label = static_cast<double>(in[label]) - static_cast<double>(largest);
      losses[r] = distillation(alpha, t.entropy[from], sums.b, log_positive(sums.a), t_label) * share;
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2) mean_kernel(int64_t rows, Loss l) {
  Pair sums{0.0, 0.0};
  for (int64_t r = threadIdx.x; r < rows; r += kThreads) sums.a += l.scratch[2 + r];
  sums = sum_of_block(sums);
  if (threadIdx.x == 0) *l.value = static_cast<float>(sums.a);
}

}  // namespace

void soft_targets(const Logits& logits, double scale, const Targets& out, const LaunchPlace& where) {
  if (logits.rows == 0) return;
  launch("soft targets", where, grid(logits.rows, where.device), targets_kernel, logits, static_cast<float>(scale),
         out);
}

void distill(const Logits& logits, const Targets& targets, const Loss& loss, const LaunchPlace& where) {
  launch("distillation: alpha", where, 1, mixing_kernel, logits, targets, loss);
  if (logits.rows > 0)
    launch("distillation: loss", where, grid(logits.rows, where.device), distill_kernel, logits, targets, loss);
  launch("distillation: mean", where, 1, mean_kernel, logits.rows, loss);
}

}  // namespace fastagg::cuda
