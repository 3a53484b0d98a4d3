// Decodes encoded updates (math/wire.h).
#include "../math/wire.h"
#include "vector.cuh"

namespace fastagg::cuda {
namespace {

__device__ __forceinline__ int64_t thread_of_grid() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ int64_t threads_of_grid() { return static_cast<int64_t>(gridDim.x) * kThreads; }

template <typename Format>
__global__ void __launch_bounds__(kThreads) decode_kernel(const __grid_constant__ Wire wire, float* out) {
  for (int64_t at = thread_of_grid() * kFour; at < wire.size; at += threads_of_grid() * kFour) {
    Quad numbers{};
#pragma unroll
    for (int e = 0; e < kFour; ++e)
      if (at + e < wire.size) numbers.v[e] = Format::element(wire, at + e);
    store(at + kFour <= wire.size, out + at, wire.size - at, numbers);
  }
}

// Writes the stored elements of a top-k. The caller must set all elements of `out` to zero before.
__global__ void __launch_bounds__(kThreads) scatter_kernel(const __grid_constant__ Wire wire, float* out) {
  for (int64_t k = thread_of_grid(); k < wire.count; k += threads_of_grid()) out[wire.indices[k]] = value_of(wire, k);
}

}  // namespace

void decode(const Wire& wire, float* out, const LaunchPlace& where) {
  visit_at(wire.format, WireFormats{}, [&](auto kind) {
    using Format = decltype(kind);
    const int64_t turns = Format::kSparse ? wire.count : (wire.size + kFour - 1) / kFour;
    const auto blocks = grid((turns + kThreads - 1) / kThreads, where.device);
    if constexpr (Format::kSparse) {
      if (!where.loads) zero(out, wire.size * static_cast<int64_t>(sizeof(float)), where);
      launch("decode", where, blocks, scatter_kernel, wire, out);
    } else {
      launch("decode", where, blocks, decode_kernel<Format>, wire, out);
    }
  });
}

}  // namespace fastagg::cuda
