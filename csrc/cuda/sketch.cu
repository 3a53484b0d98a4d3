// Sketches: a random linear map to k numbers, the CPU's bits. A sketch is of a whole update, so its random numbers are
// keyed by the update's own blocks, whatever its origin.
#include "../math/philox.h"
#include "source.cuh"

namespace fastagg::cuda {
namespace {

// CPU and GPU alike cut an update into this many parts, each added in order.
constexpr int64_t kParts = 32;

__global__ void __launch_bounds__(kThreads, 2)
    sketch_kernel(const __grid_constant__ Source source, int64_t parts, int64_t k, RandomKey key, float* partial) {
  __shared__ uint32_t signs[kBlock / kWarp];
  __shared__ uint64_t place;
  const int64_t blocks = blocks_of(source.size), length = k + kBlock;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    float* buckets = partial + part * length;
    for (int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      if (threadIdx.x < 9) {
        const Philox r = random_call(key, block, threadIdx.x);
        if (threadIdx.x < 8) {
          signs[4 * threadIdx.x] = r.a;
          signs[4 * threadIdx.x + 1] = r.b;
          signs[4 * threadIdx.x + 2] = r.c;
          signs[4 * threadIdx.x + 3] = r.d;
        } else {
          place = (r.a * static_cast<uint64_t>(k)) >> 32;
        }
      }
      __syncthreads();
      const int at = static_cast<int>(threadIdx.x) * kFour;
      const int64_t left = source.size - (block * kBlock + at);
      Cursor reader(source, block * kBlock + (left > 0 ? at : 0));
      const Four g = reader.read<false>(block * kBlock + at, left);
#pragma unroll
      for (int e = 0; e < kFour; ++e) {
        const int i = at + e;
        const uint32_t sign = (signs[i / 32] >> (i % 32)) << 31;
        if (e < left) buckets[place + i] += float_from_bits(bits_of(g.v[e]) ^ sign);
      }
      __syncthreads();
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    fold_sketch_kernel(int64_t parts, int64_t k, const float* partial, float* out) {
  const int64_t length = k + kBlock;
  for (int64_t bucket = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; bucket < k;
       bucket += static_cast<int64_t>(gridDim.x) * kThreads) {
    double total = 0.0;
    for (int64_t p = 0; p < parts; ++p) {
      total += partial[p * length + bucket];
      if (bucket < kBlock) total += partial[p * length + k + bucket];
    }
    out[bucket] = static_cast<float>(total);
  }
}

}  // namespace

void sketch(const Update& update, int64_t k, uint64_t seed, float* partial, float* out, const Where& where) {
  const DeviceGuard guard(where.device);
  const int64_t parts = std::min(kParts, blocks_of(update.size));
  const RandomKey key{seed, 0, 0xFFFFFFFFu};
  if (parts > 0) {
    check(cudaMemsetAsync(partial, 0, static_cast<size_t>(parts * (k + kBlock)) * sizeof(float),
                          static_cast<cudaStream_t>(where.stream)),
          "sketch");
    launch("sketch", where, static_cast<unsigned>(parts), sketch_kernel, source_of(update), parts, k, key, partial);
  }
  launch("sketch", where, grid((k + kThreads - 1) / kThreads, where.device), fold_sketch_kernel, parts, k, partial,
         out);
}

}  // namespace fastagg::cuda
