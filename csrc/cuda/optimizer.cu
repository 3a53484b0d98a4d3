// Optimizer step on a given direction: D r, m v vhat x rw = 36 bytes per parameter for AMSGrad.
// Element math is csrc/math/optimizer.h, the CPU's own, compiled without contraction.
#include "../math/optimizer.h"
#include "cuda.h"
#include "launch.cuh"

namespace fastagg::cuda {
namespace {

struct Arrays {
  const float* direction;
  const float* x;
  float* x_out;
  float* m;
  float* v;
  float* vhat;
};

template <int Kind>
__device__ __forceinline__ void one(const Arrays& a, int64_t i, const Hyper& h) {
  float m = 0.0f, v = 0.0f, w = 0.0f;
  if constexpr (kHasM[Kind]) m = a.m[i];
  if constexpr (kHasV[Kind]) v = a.v[i];
  if constexpr (kHasVhat[Kind]) w = a.vhat[i];
  a.x_out[i] = optimize<Kind>(a.direction[i], a.x[i], m, v, w, h);
  if constexpr (kHasM[Kind]) a.m[i] = m;
  if constexpr (kHasV[Kind]) a.v[i] = v;
  if constexpr (kHasVhat[Kind]) a.vhat[i] = w;
}

// Four elements a thread through 16-byte accesses.
template <int Kind>
__device__ __forceinline__ void four(const Arrays& a, int64_t quad, const Hyper& h) {
  const float4 d = reinterpret_cast<const float4*>(a.direction)[quad];
  const float4 x = reinterpret_cast<const float4*>(a.x)[quad];
  float4 m{}, v{}, w{}, out;
  if constexpr (kHasM[Kind]) m = reinterpret_cast<float4*>(a.m)[quad];
  if constexpr (kHasV[Kind]) v = reinterpret_cast<float4*>(a.v)[quad];
  if constexpr (kHasVhat[Kind]) w = reinterpret_cast<float4*>(a.vhat)[quad];
  out.x = optimize<Kind>(d.x, x.x, m.x, v.x, w.x, h);
  out.y = optimize<Kind>(d.y, x.y, m.y, v.y, w.y, h);
  out.z = optimize<Kind>(d.z, x.z, m.z, v.z, w.z, h);
  out.w = optimize<Kind>(d.w, x.w, m.w, v.w, w.w, h);
  reinterpret_cast<float4*>(a.x_out)[quad] = out;
  if constexpr (kHasM[Kind]) reinterpret_cast<float4*>(a.m)[quad] = m;
  if constexpr (kHasV[Kind]) reinterpret_cast<float4*>(a.v)[quad] = v;
  if constexpr (kHasVhat[Kind]) reinterpret_cast<float4*>(a.vhat)[quad] = w;
}

template <int Kind, bool Aligned>
__global__ void __launch_bounds__(kThreads) optimizer_kernel(int64_t n, Arrays a, Hyper h) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  if constexpr (Aligned) {
    const int64_t quads = n / 4;
    for (int64_t i = first; i < quads; i += stride) four<Kind>(a, i, h);
    const int64_t tail = quads * 4 + first;
    if (tail < n) one<Kind>(a, tail, h);
  } else {
    for (int64_t i = first; i < n; i += stride) one<Kind>(a, i, h);
  }
}

bool aligned16(const Arrays& a) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(a.direction) | reinterpret_cast<uintptr_t>(a.x) |
                         reinterpret_cast<uintptr_t>(a.x_out) | reinterpret_cast<uintptr_t>(a.m) |
                         reinterpret_cast<uintptr_t>(a.v) | reinterpret_cast<uintptr_t>(a.vhat);
  return bits % 16 == 0;
}

template <int Kind>
void launch(int64_t n, const Arrays& a, const Hyper& h, int device, cudaStream_t stream) {
  if (aligned16(a))
    optimizer_kernel<Kind, true><<<grid((n + 3) / 4, device), kThreads, 0, stream>>>(n, a, h);
  else
    optimizer_kernel<Kind, false><<<grid(n, device), kThreads, 0, stream>>>(n, a, h);
}

}  // namespace

int runtime_version() { return CUDART_VERSION; }

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

void step(int64_t n, const float* direction, OptimizerKind kind, const Hyper& hyper, float* m, float* v, float* vhat,
          const float* x, float* x_out, int device, void* stream) {
  if (n == 0) return;
  const DeviceGuard guard(device);
  const Arrays a{direction, x, x_out, m, v, vhat};
  const auto on = static_cast<cudaStream_t>(stream);
  switch (kind) {
    case kSgd: launch<kSgd>(n, a, hyper, device, on); break;
    case kMomentum: launch<kMomentum>(n, a, hyper, device, on); break;
    case kAdam: launch<kAdam>(n, a, hyper, device, on); break;
    case kAmsgrad: launch<kAmsgrad>(n, a, hyper, device, on); break;
    case kYogi: launch<kYogi>(n, a, hyper, device, on); break;
    case kAdagrad: launch<kAdagrad>(n, a, hyper, device, on); break;
    case kLookahead: launch<kLookahead>(n, a, hyper, device, on); break;
    default: throw std::runtime_error("fastagg CUDA optimizer step: unknown optimizer");
  }
  check(cudaGetLastError(), "optimizer step");
}

}  // namespace fastagg::cuda
