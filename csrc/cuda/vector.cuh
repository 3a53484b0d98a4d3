// Access to four neighbouring elements of a vector, which a thread processes at a time. With `Whole`, the four are read
// or written in one 16-byte access. At the vector's end, and at unaligned addresses, each element is a separate access.
//
// Most kernels distribute a vector in the same way. A warp has blocks of 1,024 elements, in rows of 128. The warp's
// thread t has elements 4t..4t+3 of every row. norms.cuh has another distribution.
#pragma once

#include <cuda_runtime.h>

#include "../math/list.h"
#include "../math/reduce.h"
#include "launch.cuh"

namespace fastagg::cuda {

// Calls launch(T{}) for the type T at `place` of a list. The same as visit_at, for host code.
template <typename Launch, typename... Each>
void launch_of(int place, List<Each...>, Launch launch) {
  int at = 0;
  ((at++ == place ? launch(Each{}) : void()), ...);
}

constexpr int kFour = 4;
constexpr int64_t kRow = kWarp * kFour;
constexpr int kRows = static_cast<int>(kBlock / kRow);

struct Quad {
  float v[kFour];
};

// Loads four elements from `in`. Without `Whole`, only the first `left` elements exist, and the others are 0.
template <bool Whole>
__device__ __forceinline__ Quad load(const float* in, int64_t left) {
  if constexpr (Whole) {
    const float4 q = *reinterpret_cast<const float4*>(in);
    return {{q.x, q.y, q.z, q.w}};
  } else {
    Quad out;
#pragma unroll
    for (int e = 0; e < kFour; ++e) out.v[e] = e < left ? in[e] : 0.0f;
    return out;
  }
}

template <bool Whole>
__device__ __forceinline__ void store(float* out, int64_t left, const Quad& value) {
  if constexpr (Whole) {
    // For a plain assignment, the compiler sometimes generates four stores.
    __stwb(reinterpret_cast<float4*>(out), make_float4(value.v[0], value.v[1], value.v[2], value.v[3]));
  } else {
#pragma unroll
    for (int e = 0; e < kFour; ++e)
      if (e < left) out[e] = value.v[e];
  }
}

__device__ __forceinline__ void store(bool whole, float* out, int64_t left, const Quad& value) {
  whole ? store<true>(out, left, value) : store<false>(out, left, value);
}

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

// warp_of_grid() returns this warp's number in the launch. warps_of_grid() returns how many warps the launch has.
__device__ __forceinline__ int64_t warp_of_grid() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}
__device__ __forceinline__ int64_t warps_of_grid() { return static_cast<int64_t>(gridDim.x) * kWarps; }

// Returns the largest value in the warp to all its threads.
__device__ __forceinline__ unsigned warp_max(unsigned value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int half = kWarp / 2; half > 0; half /= 2) value = max(value, __shfl_xor_sync(kAll, value, half));
  return value;
#else
  return __reduce_max_sync(kAll, value);
#endif
}

FASTAGG_FN int64_t blocks_of(int64_t size) { return (size + kBlock - 1) / kBlock; }

template <typename... Addressed>
bool all_aligned(const Addressed*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ... | uintptr_t{0}) % 16) == 0;
}

}  // namespace fastagg::cuda
