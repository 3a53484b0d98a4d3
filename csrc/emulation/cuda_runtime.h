// CUDA on a CPU, for tests: just enough of the language and the runtime that the files in csrc/cuda compile as C++ and
// run, one block of threads after the other, every thread a fiber that stops at barriers and shuffles. Nothing here is
// fast, and nothing here is in the package: it shows on a machine without a GPU that a kernel computes what the CPU
// does, and lets AddressSanitizer watch it.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define CUDART_VERSION 13000

using std::isfinite;

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();
void __syncwarp();
inline void __threadfence() {}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
void __stwb(T* address, T value) {
  *address = value;
}
inline unsigned atomicAdd(unsigned* address, unsigned value) { return std::exchange(*address, *address + value); }

namespace emulation {
// Every lane of the warp leaves `bytes` bytes and then takes those of lane `from`.
void exchange(void* value, size_t bytes, int from);
int lane();
void run(unsigned blocks, unsigned threads, const std::function<void()>& kernel);
}  // namespace emulation

template <typename T>
T __shfl_down_sync(unsigned, T value, int delta) {
  const int from = emulation::lane() + delta;
  emulation::exchange(&value, sizeof value, from < 32 ? from : emulation::lane());
  return value;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  for (int half = 16; half > 0; half /= 2) {
    unsigned other = value;
    emulation::exchange(&other, sizeof other, emulation::lane() ^ half);
    value = other > value ? other : value;
  }
  return value;
}

enum cudaError_t {
  cudaSuccess,
  cudaErrorNoKernelImageForDevice,
  cudaErrorUnsupportedPtxVersion,
  cudaErrorInsufficientDriver
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor
};
using cudaStream_t = void*;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
};
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  *value = what == cudaDevAttrMultiProcessorCount ? 1 : 9;
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  memset(to, value, bytes);
  return cudaSuccess;
}
template <typename... Expected, typename... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...), Given&&... arguments) {
  const auto call = [&] { kernel(arguments...); };
  emulation::run(config->gridDim.x, config->blockDim.x, call);
  return cudaSuccess;
}
