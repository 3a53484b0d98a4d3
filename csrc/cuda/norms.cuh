// Computes sums of squares and products over an update, in the fixed order of math/reduce.h. So the results have the
// CPU's bits. Eight threads process a strand, and thread t of these has lanes 4t..4t+3. So a warp reads four strands at
// a time. A block of threads processes a quarter of a group at a time. The block that finishes last in a group adds the
// group's strands in order. The block that finishes last of all adds the groups. Blocks of threads are small, so that
// even an update of about ten million parameters uses all multiprocessors equally.
//
// Squares and products of fp32 numbers are exact in double, so fused multiply-adds change no bit. Fused operations
// halve the work of the double-precision unit, which is slow on consumer GPUs.
#pragma once

#include "source.cuh"

namespace fastagg::cuda {

constexpr int kParts = 4;  // the number of parts of a group
constexpr int kPartStrands = static_cast<int>(kGroupStrands) / kParts;
constexpr int kPartThreads = kPartStrands * static_cast<int>(kQuads);

static_assert(kLanes == kQuads * kFour, "four lanes for every thread");
static_assert(kPartThreads % kWarp == 0 && kGroupStrands % kParts == 0, "whole warps, whole parts");
static_assert(kSlots % (2 * kPartThreads) == 0, "as many slots for every thread, in both halves");

FASTAGG_FN int64_t groups_of(int64_t size) { return size > 0 ? (size + kGroup - 1) / kGroup : 1; }

// The device memory through which the blocks of threads of one launch exchange data.
struct NormScratch {
  double* strand;  // the strands' sums, [kSums, groups, kGroupStrands]
  double* group;   // the groups' sums, [kSums, groups]
  // The number of finished groups, then each group's number of finished parts. All are 0 between launches.
  unsigned* finished;

  __device__ __forceinline__ double* strands(int sum, int64_t group_, int64_t groups) const {
    return strand + (sum * groups + group_) * kGroupStrands;
  }
};

FASTAGG_FN int64_t counters_of(int64_t groups) { return 1 + groups; }
FASTAGG_FN int64_t sums_of(int64_t groups) { return groups * kSums * (kGroupStrands + 1); }

// The sums of a thread's four lanes.
struct Lanes {
  double of[kSums][kFour];
};

// Adds `N` rows of kLanes elements to the sums. The loads of all rows start before the first addition. Moves: whether
// to sum |x - base|^2. Inner: whether to sum (x - base).update, too (only with Moves).
template <bool Moves, bool Inner, int N, bool Whole, typename Reader>
__device__ __forceinline__ void add_rows(Reader& reader, const float* x, const float* base, int64_t at, int64_t left,
                                         Lanes& lanes) {
  Quad input[N], now[N], then[N];
#pragma unroll
  for (int r = 0; r < N; ++r) {
    const int64_t row = r * kLanes;
    input[r] = reader.template read<Whole>(at + row, left - row);
    if constexpr (Moves) {
      now[r] = load<Whole>(x + at + row, left - row);
      then[r] = load<Whole>(base + at + row, left - row);
    }
  }
#pragma unroll
  for (int r = 0; r < N; ++r)
#pragma unroll
    for (int e = 0; e < kFour; ++e) {
      const double u = static_cast<double>(input[r].v[e]);
      lanes.of[0][e] = __fma_rn(u, u, lanes.of[0][e]);
      if constexpr (Moves) {
        const double moved = static_cast<double>(now[r].v[e] - then[r].v[e]);
        lanes.of[1][e] = __fma_rn(moved, moved, lanes.of[1][e]);
        if constexpr (Inner) lanes.of[2][e] = __fma_rn(moved, u, lanes.of[2][e]);
      }
    }
}

// Adds up a strand's quads in the order of math/reduce.h. The first of the strand's eight threads gets the sum.
__device__ __forceinline__ double fold(double quad) {
  for (int half = kQuads / 2; half > 0; half /= 2) quad += __shfl_down_sync(kAll, quad, half);
  return quad;
}

// Returns whether this block of threads is the last of `all` blocks to increment the counter. The last block sees
// everything that the other blocks wrote before.
__device__ __forceinline__ bool last_to_come(unsigned* counter, int64_t all) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // makes this block's writes visible before the count
    last = atomicAdd(counter, 1u) == static_cast<unsigned>(all - 1);
    __threadfence();  // reads the other blocks' writes only after the count
  }
  __syncthreads();
  return last;
}

// Returns the total of all groups to every thread of the block.
__device__ __forceinline__ double total_of(const double* groups_sums, int64_t groups) {
  __shared__ double slots[kSlots];
  for (int slot = static_cast<int>(threadIdx.x); slot < kSlots; slot += kPartThreads) {
    double sum = 0.0;
    for (int64_t g = slot; g < groups; g += kSlots) sum += __ldcg(groups_sums + g);
    // No barrier is needed yet. While `half` is a multiple of kPartThreads, a thread reads only slots that it wrote.
    slots[slot] = sum;
  }
  for (int half = kSlots / 2; half > 0; half /= 2) {
    for (int slot = static_cast<int>(threadIdx.x); slot < half; slot += kPartThreads) slots[slot] += slots[slot + half];
    __syncthreads();
  }
  const double total = slots[0];
  __syncthreads();
  return total;
}

// Computes the sums, and writes them to `out` when all groups are done. A sum that is not computed is 0.
template <bool Moves, bool Inner, typename Reader>
__global__ void __launch_bounds__(kPartThreads, 8)
    norms_kernel(const __grid_constant__ typename Reader::SourceData source, bool aligned, const float* x,
                 const float* base, NormScratch scratch, double* out) {
  constexpr int kUsed = Inner ? 3 : Moves ? 2 : 1, kBatch = Moves ? 4 : 8;
  const int strand = static_cast<int>(threadIdx.x / kQuads), quad = static_cast<int>(threadIdx.x % kQuads);
  const int64_t groups = groups_of(source.size);
  for (int64_t part = blockIdx.x; part < groups * kParts; part += gridDim.x) {
    const int64_t group = part / kParts, of_group = part % kParts * kPartStrands + strand;
    const int64_t begin = group * kGroup + of_group * kStrand;
    const int64_t end = begin + kStrand < source.size ? begin + kStrand : source.size;
    Lanes lanes{};
    if (begin < end) {
      Reader reader(source, begin);
#pragma unroll 1
      for (int64_t row = begin; row < end; row += kBatch * kLanes) {
        const int64_t at = row + quad * kFour;
        if (aligned && row + kBatch * kLanes <= end)
          add_rows<Moves, Inner, kBatch, true>(reader, x, base, at, kBatch * kLanes, lanes);
        else
          add_rows<Moves, Inner, kBatch, false>(reader, x, base, at, end - at, lanes);
      }
    }
#pragma unroll
    for (int s = 0; s < kUsed; ++s) {
      const double sum = fold(fold_quad(lanes.of[s][0], lanes.of[s][1], lanes.of[s][2], lanes.of[s][3]));
      if (quad == 0) scratch.strands(s, group, groups)[of_group] = sum;
    }
    if (!last_to_come(scratch.finished + 1 + group, kParts)) continue;
    if (threadIdx.x == 0) scratch.finished[1 + group] = 0;  // resets the counter for the next launch
    if (threadIdx.x < kUsed) {
      const double* strands = scratch.strands(static_cast<int>(threadIdx.x), group, groups);
      double sum = 0.0;
#pragma unroll
      for (int i = 0; i < kGroupStrands; ++i) sum += __ldcg(strands + i);
      scratch.group[threadIdx.x * groups + group] = sum;
    }
    if (!last_to_come(scratch.finished, groups)) continue;
    for (int s = 0; s < kSums; ++s) {
      const double total = s < kUsed ? total_of(scratch.group + s * groups, groups) : 0.0;
      if (threadIdx.x == 0) out[s] = total;
    }
    if (threadIdx.x == 0) *scratch.finished = 0;
  }
}

}  // namespace fastagg::cuda
