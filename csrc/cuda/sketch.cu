// Sketches: a random linear map to k numbers, with the CPU's bits. A sketch is of a whole update. So its random numbers
// are keyed by the update's own blocks, whatever its origin.
//
// Every block of 1,024 elements is added, with random signs, to 1,024 neighbouring buckets that begin at a random
// place. A part's blocks are added in order. Only additions to the same bucket must be in order. So each thread keeps
// its own buckets in registers, goes over all blocks of a part, and takes from each block what belongs to its buckets.
// Every element is read once.
#include "../math/philox.h"
#include "source.cuh"

namespace fastagg::cuda {
namespace {

// CPU and GPU divide an update into this number of parts. Each part is added in order.
constexpr int64_t kParts = 32;

constexpr int kBuckets = 2;  // buckets of a thread, kWarp apart
constexpr int64_t kWarpBuckets = kBuckets * kWarp, kThreadsBuckets = kWarps * kWarpBuckets;
constexpr int kTogether = 4;   // blocks that are loaded before the first is added
constexpr int kSignCalls = 8;  // a block's calls for its signs; the call after them gives its place
static_assert(kTogether * kSignCalls == kWarp, "a call of four blocks for every lane");

// Up to four blocks in order. `count` tells how many.
struct Few {
  int count = 0;
  int64_t block[kTogether] = {};
  int64_t place[kTogether] = {};
};

template <typename Reader>
__device__ __forceinline__ void add_blocks(const Few& few, Reader (&reader)[kBuckets], int64_t size, int64_t first,
                                           const RandomKey& key, float (&sum)[kBuckets]) {
  const int mine = lane() / kSignCalls;
  int64_t block_of_mine = 0;
#pragma unroll
  for (int n = 0; n < kTogether; ++n) block_of_mine = mine == n ? few.block[n] : block_of_mine;
  const Philox made = random_call(key, block_of_mine, static_cast<uint32_t>(lane() % kSignCalls));
  float value[kTogether][kBuckets];
  bool there[kTogether][kBuckets];
#pragma unroll
  for (int n = 0; n < kTogether; ++n)
#pragma unroll
    for (int b = 0; b < kBuckets; ++b) {
      const int64_t i = first + b * kWarp + lane() - few.place[n], at = few.block[n] * kBlock + i;
      there[n][b] = n < few.count && i >= 0 && i < kBlock && at < size;
      value[n][b] = there[n][b] ? reader[b].one(at) : 0.0f;
    }
#pragma unroll
  for (int n = 0; n < kTogether; ++n)
#pragma unroll
    for (int b = 0; b < kBuckets; ++b) {
      const int i = static_cast<int>(first + b * kWarp + lane() - few.place[n]) & static_cast<int>(kBlock - 1);
      const int from = n * kSignCalls + i / 128, word = i / 32 % 4;
      const uint32_t c0 = __shfl_sync(kAll, made.a, from), c1 = __shfl_sync(kAll, made.b, from);
      const uint32_t c2 = __shfl_sync(kAll, made.c, from), c3 = __shfl_sync(kAll, made.d, from);
      const uint32_t signs = word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
      const uint32_t sign = (signs >> (i % 32)) << 31;
      if (there[n][b]) sum[b] += float_from_bits(bits_of(value[n][b]) ^ sign);
    }
}

template <typename Reader>
__global__ void __launch_bounds__(kThreads, 2) sketch_kernel(const __grid_constant__ typename Reader::From source,
                                                             int64_t parts, int64_t k, RandomKey key, float* partial) {
  __shared__ int64_t places[kThreads];
  const int64_t blocks = blocks_of(source.size), length = k + kBlock;
  const int64_t across = (length + kThreadsBuckets - 1) / kThreadsBuckets;
  for (int64_t item = blockIdx.x; item < parts * across; item += gridDim.x) {
    const int64_t part = item / across;
    const int64_t first = item % across * kThreadsBuckets + threadIdx.x / kWarp * kWarpBuckets;
    const int64_t begin = blocks * part / parts, end = blocks * (part + 1) / parts;
    Reader reader[kBuckets] = {Reader(source, begin * kBlock), Reader(source, begin * kBlock)};
    float sum[kBuckets] = {};
    for (int64_t some = begin; some < end; some += kThreads) {
      const int64_t own = some + threadIdx.x;
      __syncthreads();  // all threads have read the last places
      places[threadIdx.x] =
          static_cast<int64_t>((random_call(key, own, kSignCalls).a * static_cast<uint64_t>(k)) >> 32);
      __syncthreads();
      for (int from = 0; from < kThreads && some + from < end; from += kWarp) {
        const int64_t place = places[from + lane()];
        const bool meets = some + from + lane() < end && place < first + kWarpBuckets && place + kBlock > first;
        for (unsigned left = __ballot_sync(kAll, meets); left != 0;) {
          Few few;
#pragma unroll
          for (int n = 0; n < kTogether; ++n) {
            if (left == 0) continue;
            const int which = __ffs(static_cast<int>(left)) - 1;
            left &= left - 1;
            few.block[n] = some + from + which;
            few.place[n] = places[from + which];
            few.count = n + 1;
          }
          add_blocks(few, reader, source.size, first, key, sum);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBuckets; ++b) {
      const int64_t bucket = first + b * kWarp + lane();
      if (bucket < length) partial[part * length + bucket] = sum[b];
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
  const int64_t across = (k + kBlock + kThreadsBuckets - 1) / kThreadsBuckets;
  const RandomKey key{seed, 0, 0xFFFFFFFFu};
  if (parts > 0)
    read_with(update, [&](auto with, const auto& source) {
      launch("sketch", where, grid(parts * across, where.device), sketch_kernel<typename decltype(with)::Reader>,
             source, parts, k, key, partial);
    });
  launch("sketch", where, grid((k + kThreads - 1) / kThreads, where.device), fold_sketch_kernel, parts, k, partial,
         out);
}

}  // namespace fastagg::cuda
