// Sums of squares and products of an update in math/reduce.h's fixed shape, the CPU's bits: eight threads take a
// strand, thread t of them lanes 4t..4t+3, so that a warp reads four strands at once; a block of threads takes a group,
// and the last to finish adds up all groups and says what follows.
#pragma once

#include "source.cuh"

namespace fastagg::cuda {

constexpr int kSums = 3;  // |update|^2, |x - base|^2, (x - base).update

struct Sums {
  double of[kSums];
};

FASTAGG_FN int64_t groups_of(int64_t size) { return (size + kGroup - 1) / kGroup; }

// A thread's sums: those of the lanes 4t..4t+3.
struct Lanes {
  double of[kSums][kFour];
};

// `N` rows of kLanes elements, all of which are asked for before the first is added.
template <bool Moves, bool Inner, int N, bool Whole, typename Reader>
__device__ __forceinline__ void add_rows(Reader& reader, const float* x, const float* base, int64_t at, int64_t left,
                                         Lanes& lanes) {
  Four given[N], now[N], then[N];
#pragma unroll
  for (int r = 0; r < N; ++r) {
    const int64_t row = r * kLanes;
    given[r] = reader.template read<Whole>(at + row, left - row);
    if constexpr (Moves) {
      now[r] = load<Whole>(x + at + row, left - row);
      then[r] = load<Whole>(base + at + row, left - row);
    }
  }
#pragma unroll
  for (int r = 0; r < N; ++r)
#pragma unroll
    for (int e = 0; e < kFour; ++e) {
      const double u = static_cast<double>(given[r].v[e]);
      lanes.of[0][e] += u * u;
      if constexpr (Moves) {
        const double moved = static_cast<double>(now[r].v[e] - then[r].v[e]);
        lanes.of[1][e] += moved * moved;
        if constexpr (Inner) lanes.of[2][e] += moved * u;
      }
    }
}

// The sum over a strand's quads, which fold in halves, for the first of its eight threads.
__device__ __forceinline__ double fold(double quad) {
  for (int half = kQuads / 2; half > 0; half /= 2) quad += __shfl_down_sync(kAll, quad, half);
  return quad;
}

static_assert(kGroupStrands * kQuads == kThreads, "eight threads for every strand of a group");
static_assert(kLanes == kQuads * kFour, "four lanes for every thread");
static_assert(kSlots == kThreads, "a thread for every slot");

// then(sums) by one thread, when all groups are done.
template <bool Moves, bool Inner, typename Reader, typename Then>
__global__ void __launch_bounds__(kThreads, 2)
    norms_kernel(const __grid_constant__ Source source, bool aligned, const float* x, const float* base,
                 Scratch scratch, Then then) {
  constexpr int kUsed = Inner ? 3 : Moves ? 2 : 1, kBatch = Moves ? 4 : 8;
  __shared__ double of_strand[kSums][kGroupStrands];
  const int strand = static_cast<int>(threadIdx.x / kQuads), quad = static_cast<int>(threadIdx.x % kQuads);
  const int64_t groups = groups_of(source.size);
  for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const int64_t begin = group * kGroup + strand * kStrand;
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
      if (quad == 0) of_strand[s][strand] = sum;
    }
    __syncthreads();
    if (threadIdx.x < kUsed) {
      double sum = 0.0;
      for (int i = 0; i < kGroupStrands; ++i) sum += of_strand[threadIdx.x][i];
      scratch.partial[threadIdx.x * groups + group] = sum;
    }
    __syncthreads();
  }

  __shared__ bool is_last;
  if (threadIdx.x < kUsed) __threadfence();  // the sums above, before the count below
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(scratch.counter, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  __shared__ double slots[kSlots];
  Sums total{};
  for (int s = 0; s < kUsed; ++s) {
    double sum = 0.0;
    for (int64_t g = threadIdx.x; g < groups; g += kSlots) sum += __ldcg(scratch.partial + s * groups + g);
    slots[threadIdx.x] = sum;
    __syncthreads();
    for (int half = kSlots / 2; half > 0; half /= 2) {
      if (static_cast<int>(threadIdx.x) < half) slots[threadIdx.x] += slots[threadIdx.x + half];
      __syncthreads();
    }
    total.of[s] = slots[0];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *scratch.counter = 0;
    then(total);
  }
}

// Without x, |update|^2 alone.
template <typename Then>
void reduce(const Update& update, const Against& against, const Scratch& scratch, const Then& then,
            const Where& where) {
  const DeviceGuard guard(where.device);
  using Kernel = void (*)(Source, bool, const float*, const float*, Scratch, Then);
  constexpr Kernel kKernels[3][2] = {{norms_kernel<false, false, Cursor>, norms_kernel<false, false, Flat>},
                                     {norms_kernel<true, false, Cursor>, norms_kernel<true, false, Flat>},
                                     {norms_kernel<true, true, Cursor>, norms_kernel<true, true, Flat>}};
  const Source source = source_of(update);
  const int wanted = against.x == nullptr ? 0 : against.inner ? 2 : 1;
  launch("norms", where, grid(groups_of(update.size), where.device), kKernels[wanted][source.flat != nullptr], source,
         all_aligned(against.x, against.base), against.x, against.base, scratch, then);
}

}  // namespace fastagg::cuda
