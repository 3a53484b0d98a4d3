// Norms in reduce.h's fixed shape, the CPU's bits, and what follows from them, decided on the device.
#include "../math/philox.h"
#include "source.cuh"

namespace fastagg::cuda {
namespace {

constexpr int kSums = 3;  // |update|^2, |x - base|^2, (x - base).update

struct Sums {
  double of[kSums];
};

// A warp's sum over its lanes: quads fold in halves.
__device__ __forceinline__ double fold(double quad) {
  for (int half = kWarp / 2; half > 0; half /= 2) quad += __shfl_down_sync(kAll, quad, half);
  return quad;
}

__device__ void decide(const Sums& total, const Rules& rules, Verdict* verdict) {
  const double norm2 = total.of[0], moved2 = total.of[1];
  const bool finite = isfinite(norm2);
  const double norm = sqrt(norm2);
  const double gain = finite && rules.clip_norm > 0.0 && norm > rules.clip_norm ? rules.clip_norm / norm : 1.0;
  double weight = 1.0;
  bool keep = finite;
  if (rules.lam > 0.0 && finite) {
    const double length = norm * gain, gamma = sqrt(moved2) / length;
    keep = length > 0.0 && !(rules.gamma_max > 0.0 && gamma > rules.gamma_max);
    weight = keep ? rules.lam / (gamma + rules.eps) : 0.0;
  }
  *verdict = {norm2, moved2, total.of[2], gain, weight, keep ? 1.0 : 0.0};
}

// One block of threads per group of 64 blocks; the last to finish adds up all groups. `counter` counts who finished.
// What a row of 128 elements adds to a thread's sums.
template <bool Moves, bool Inner, bool Whole, typename Reader>
__device__ __forceinline__ void add_row(Reader& reader, const float* x, const float* base, int64_t at, int64_t left,
                                        double (&lanes)[kSums][kFour]) {
  const Four g = reader.template read<Whole>(at, left);
  Four now{}, then{};
  if constexpr (Moves) {
    now = load<Whole>(x + at, left);
    then = load<Whole>(base + at, left);
  }
#pragma unroll
  for (int e = 0; e < kFour; ++e) {
    const double u = static_cast<double>(g.v[e]);
    lanes[0][e] += u * u;
    if constexpr (Moves) {
      const double moved = static_cast<double>(now.v[e] - then.v[e]);
      lanes[1][e] += moved * moved;
      if constexpr (Inner) lanes[2][e] += moved * u;
    }
  }
}

template <bool Moves, bool Inner, typename Reader>
__global__ void __launch_bounds__(kThreads, 2)
    norms_kernel(const __grid_constant__ Source source, bool aligned, const float* x, const float* base, int64_t first,
                 int64_t last, int64_t groups, bool finish, Rules rules, double* partial, unsigned* counter,
                 Verdict* verdict) {
  constexpr int kUsed = Inner ? 3 : Moves ? 2 : 1;
  __shared__ double of_block[kSums][kGroupBlocks];
  for (int64_t group = first + blockIdx.x; group < last; group += gridDim.x) {
    for (int b = static_cast<int>(threadIdx.x) / kWarp; b < kGroupBlocks; b += kWarps) {
      const int64_t block = group * kGroupBlocks + b;
      double lanes[kSums][kFour] = {};
      if (block * kBlock < source.size) {
        Reader reader(source, block * kBlock);
        const int64_t begin = block * kBlock + lane() * kFour;
        if (aligned && (block + 1) * kBlock <= source.size) {
#pragma unroll 4
          for (int row = 0; row < kRows; ++row)
            add_row<Moves, Inner, true>(reader, x, base, begin + row * kLanes, kFour, lanes);
        } else {
#pragma unroll 1
          for (int row = 0; row < kRows; ++row)
            add_row<Moves, Inner, false>(reader, x, base, begin + row * kLanes, source.size - begin - row * kLanes,
                                         lanes);
        }
      }
#pragma unroll
      for (int s = 0; s < kUsed; ++s) {
        const double sum = fold(fold_quad(lanes[s][0], lanes[s][1], lanes[s][2], lanes[s][3]));
        if (lane() == 0) of_block[s][b] = sum;
      }
    }
    __syncthreads();
    if (threadIdx.x < kUsed) {
      double sum = 0.0;
      for (int b = 0; b < kGroupBlocks; ++b) sum += of_block[threadIdx.x][b];
      partial[threadIdx.x * groups + group] = sum;
    }
    __syncthreads();
  }
  if (!finish) return;

  __shared__ bool is_last;
  if (threadIdx.x < kUsed) __threadfence();  // the sums above, before the count below
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(counter, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  __shared__ double slots[kSlots];
  Sums total{};
  for (int s = 0; s < kUsed; ++s) {
    double sum = 0.0;
    for (int64_t g = threadIdx.x; g < groups; g += kSlots) sum += __ldcg(partial + s * groups + g);
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
    *counter = 0;
    decide(total, rules, verdict);
  }
}

static_assert(kSlots == kThreads, "a thread for every slot");

// CPU and GPU alike cut an update into this many parts, each added in order.
constexpr int64_t kParts = 32;

__global__ void __launch_bounds__(kThreads, 2)
    sketch_kernel(const __grid_constant__ Source source, int64_t parts, int64_t k, RandomKey key, float* partial) {
  __shared__ uint32_t signs[kBlock / kWarp];
  __shared__ uint64_t place;
  const int64_t blocks = (source.size + kBlock - 1) / kBlock, length = k + kBlock;
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
        uint32_t bits;
        memcpy(&bits, &g.v[e], sizeof bits);
        if (e < left) buckets[place + i] += float_from_bits(bits ^ ((signs[i / 32] >> (i % 32)) << 31));
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

void norms(const cpu::Update& update, const float* x, const float* base, bool wants_inner, const Rules& rules,
           int64_t first, int64_t last, bool finish, double* partial, unsigned* counter, Verdict* verdict,
           const Where& where) {
  const DeviceGuard guard(where.device);
  const int64_t groups = (update.size + kGroup - 1) / kGroup;
  const bool aligned = all_aligned(x, base);
  using Kernel = void (*)(Source, bool, const float*, const float*, int64_t, int64_t, int64_t, bool, Rules, double*,
                          unsigned*, Verdict*);
  constexpr Kernel kKernels[3][2] = {{norms_kernel<false, false, Cursor>, norms_kernel<false, false, Flat>},
                                     {norms_kernel<true, false, Cursor>, norms_kernel<true, false, Flat>},
                                     {norms_kernel<true, true, Cursor>, norms_kernel<true, true, Flat>}};
  const Source source = source_of(update);
  const Kernel kernel = kKernels[x == nullptr ? 0 : wants_inner ? 2 : 1][source.flat != nullptr];
  launch("norms", where, grid(last - first, where.device), kernel, source, aligned, x, base, first, last, groups,
         finish, rules, partial, counter, verdict);
}

void sketch(const cpu::Update& update, int64_t k, uint64_t seed, float* partial, float* out, const Where& where) {
  const DeviceGuard guard(where.device);
  const int64_t blocks = (update.size + kBlock - 1) / kBlock, parts = std::min(kParts, blocks);
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
