// Combines waiting updates element by element (math/combine.h), and computes sums over pairs of waiting updates.
#include "../math/combine.h"
#include "norms.cuh"

namespace fastagg::cuda {
namespace {

// Reads elements at..at+3 of a row that is not in fp32, without the row's factor. Only the first `left` elements exist.
// The function is not inlined, so that each kernel contains the function's code once.
__device__ __noinline__ Quad decode_four(const HeldRow& row, int64_t at, int64_t left) {
  Quad numbers{};
#pragma unroll 1
  for (int e = 0; e < kFour && e < left; ++e) {
    const float value = row.data != nullptr ? widen(row.dtype, static_cast<const uint16_t*>(row.data)[at + e])
                                            : number_at(row.wire, at + e);
#pragma unroll
    for (int k = 0; k < kFour; ++k) numbers.v[k] = k == e ? value : numbers.v[k];
  }
  return numbers;
}

// Returns elements at..at+3 of a row, times the row's factor. Only the first `left` elements exist. The others are 0.
__device__ __forceinline__ Quad read_four(const HeldRow& row, int64_t at, int64_t left) {
  Quad numbers;
  if (row.data != nullptr && row.dtype == kFloat32) {
    const float* const in = static_cast<const float*>(row.data) + at;
    numbers = left >= kFour ? load<true>(in, left) : load<false>(in, left);
  } else {
    numbers = decode_four(row, at, left);
  }
#pragma unroll
  for (int e = 0; e < kFour; ++e) numbers.v[e] = row.by * numbers.v[e];
  return numbers;
}

__device__ __forceinline__ void put_four(float* to, const Quad& value) {
  *reinterpret_cast<float4*>(to) = make_float4(value.v[0], value.v[1], value.v[2], value.v[3]);
}

__global__ void __launch_bounds__(kThreads, 2) mean_kernel(const HeldRows rows, float* out) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kFour;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kFour; at < rows.size; at += step) {
    Quad sum{};
#pragma unroll 1
    for (int64_t k = 0; k < rows.count; ++k) {
      if (rows.of[k].by == 0.0f) continue;
      const Quad row = read_four(rows.of[k], at, rows.size - at);
#pragma unroll
      for (int e = 0; e < kFour; ++e) sum.v[e] = sum.v[e] + row.v[e];
    }
    store(at + kFour <= rows.size, out + at, rows.size - at, sum);
  }
}

constexpr int kMeans = place_in<Mean>(CombineKinds{}), kTrims = place_in<TrimmedMean>(CombineKinds{});
constexpr int kSortedNumbers = 8 * static_cast<int>(kMostCombined);  // 32 KB of shared memory

// Returns for how many elements a block of threads sorts the rows' values at a time. The number is a power of two.
inline int width_of(int64_t count) {
  int width = kThreads;
  while (width * count > kSortedNumbers) width /= 2;
  return width;
}

// Computes a trimmed mean or a mean around the median. A block of threads sorts the values of a tile, `width` elements,
// at a time. Row k's value of the tile's element c is at k*width + c. Comparisons in one stage of the sorting network
// use different places, so their order is free. `width` is a power of two, so kThreads is a multiple of `width`.
__global__ void __launch_bounds__(kThreads, 2)
    sorted_kernel(const HeldRows rows, int width, CombineSetting how, float* out) {
  alignas(16) __shared__ float values[kSortedNumbers];
  const int count = static_cast<int>(rows.count), fours = __ffs(width / kFour) - 1;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % width, turn = thread / width, turns = kThreads / width;
  const int64_t step = static_cast<int64_t>(gridDim.x) * width;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * width; begin < rows.size; begin += step) {
    __syncthreads();  // waits until all threads have read the last tile
    for (int q = thread; q < count << fours; q += kThreads) {
      const int k = q >> fours, c = (q & ((1 << fours) - 1)) * kFour;
      put_four(values + k * width + c, read_four(rows.of[k], begin + c, rows.size - begin - c));
    }
    for (int sorted = 0; 1 << sorted < count; ++sorted)
      for (int shift = sorted; shift >= 0; --shift) {
        __syncthreads();
        const int apart = 1 << shift, first = apart & ((1 << sorted) - 1);
        for (int q = turn;; q += turns) {
          const int i = first + (q >> shift << (shift + 1)) + (q & (apart - 1));
          if (i + apart >= count) break;
          if (i >> (sorted + 1) == (i + apart) >> (sorted + 1))
            exchange<Scalar>(values[i * width + column], values[(i + apart) * width + column]);
        }
      }
    __syncthreads();
    if (turn > 0 || begin + column >= rows.size) continue;
    const auto at = [&](int64_t k) { return values[k * width + column]; };
    const auto chosen = [](bool holds, float yes, float no) { return holds ? yes : no; };
    out[begin + column] =
        how.kind == kTrims ? trimmed_mean<float>(count, how.cut, at) : mean_around<float>(count, how.cut, at, chosen);
  }
}

// Computes the trimmed mean of at most N rows. A thread computes four elements at a time. For each element the thread
// sorts N values in registers. With fewer rows than N, infinity takes the place of a missing value, and comes last.
template <int N>
__global__ void __launch_bounds__(kThreads, 2) trimmed_kernel(const HeldRows rows, int cut, float* out) {
  const int count = static_cast<int>(rows.count);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kFour;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kFour; at < rows.size; at += step) {
    float values[kFour][N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      Quad row{{HUGE_VALF, HUGE_VALF, HUGE_VALF, HUGE_VALF}};
      if (k < count) row = read_four(rows.of[k], at, rows.size - at);
#pragma unroll
      for (int e = 0; e < kFour; ++e) values[e][k] = row.v[e];
    }
    Quad mean{};
#pragma unroll
    for (int e = 0; e < kFour; ++e) {
      sort<N, Scalar>(values[e]);
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (k >= cut && k < count - cut) mean.v[e] = mean.v[e] + values[e][k];
      mean.v[e] = mean.v[e] / static_cast<float>(count - 2 * cut);
    }
    store(at + kFour <= rows.size, out + at, rows.size - at, mean);
  }
}

// -- sums over pairs

constexpr int kWide = static_cast<int>(kSide), kPairs = kWide * kWide, kTurn = static_cast<int>(kSumLanes);
constexpr int kEach = 4;  // a thread computes one lane of the sums for this many rows and columns
constexpr int kPairThreads = kPairs / (kEach * kEach) * kTurn;
constexpr int kPart = kWarp * kFour;  // how many elements of a row a warp copies to shared memory at a time
constexpr int kRoom = kPart + 2;      // 2 unused numbers: so rows that are four apart use different memory banks

// Computes sums over pairs of rows: of products, or with `Apart` of squared differences. A block of threads processes
// one tile of pairs and one group (math/reduce.h) at a time. Lanes are added up after every 1,024 elements, as on the
// CPU. Threads with pairs only below the diagonal compute nothing. The last tiles may have fewer than kWide rows or
// columns. A thread then reads the last row in place of a missing one. The sums of missing rows are not used.
template <bool Apart>
__global__ void __launch_bounds__(kPairThreads, 4) pairs_kernel(const HeldRows rows, const Tiles tiles) {
  alignas(16) __shared__ double held[2][kWide][kRoom];
  const int thread = static_cast<int>(threadIdx.x), mine = thread % kTurn, warp = thread / kWarp;
  const int column = thread / kTurn % (kWide / kEach) * kEach, row = thread / (kTurn * kWide / kEach) * kEach;
  const int64_t groups = groups_of(rows.size), wide = (rows.count + kWide - 1) / kWide;
  for (int64_t job = blockIdx.x; job < groups * tiles.count; job += gridDim.x) {
    const int64_t group = job / tiles.count, listed = job % tiles.count, tile = tiles.listed[listed];
    const int64_t first[2] = {tile / wide * kWide, tile % wide * kWide};
    const bool square = first[0] == first[1];
    int there[2];
#pragma unroll
    for (int side = 0; side < 2; ++side)
      there[side] = static_cast<int>(rows.count - first[side] < kWide ? rows.count - first[side] : kWide);
    const bool wanted = row < there[0] && column < there[1] && !(square && column < row);
    const double *a[kEach], *b[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      a[k] = held[0][row + k < there[0] ? row + k : there[0] - 1] + mine;
      b[k] = held[square ? 0 : 1][column + k < there[1] ? column + k : there[1] - 1] + mine;
    }
    const int64_t end = (group + 1) * kGroup < rows.size ? (group + 1) * kGroup : rows.size;
    double total[2] = {};  // the sums of pairs 2*mine and 2*mine + 1 of the thread's sixteen pairs
    for (int64_t block = group * kGroup; block < end; block += kBlock) {
      double sum[kEach][kEach] = {};
      for (int64_t begin = block; begin < block + kBlock && begin < end; begin += kPart) {
        __syncthreads();  // waits until all threads have read the last part
#pragma unroll
        for (int side = 0; side < 2; ++side)
          for (int k = warp; k < there[side] && !(square && side == 1); k += kPairThreads / kWarp) {
            const int64_t at = begin + lane() * kFour;
            const Quad read = read_four(rows.of[first[side] + k], at, end - at);
#pragma unroll
            for (int e = 0; e < kFour; ++e) held[side][k][lane() * kFour + e] = static_cast<double>(read.v[e]);
          }
        __syncthreads();
        if (!wanted) continue;
#pragma unroll 4
        for (int i = 0; i < kPart; i += kTurn) {
          double of_a[kEach], of_b[kEach];
#pragma unroll
          for (int k = 0; k < kEach; ++k) of_a[k] = a[k][i], of_b[k] = b[k][i];
#pragma unroll
          for (int r = 0; r < kEach; ++r)
#pragma unroll
            for (int c = 0; c < kEach; ++c) {
              const double difference = of_a[r] - of_b[c];
              sum[r][c] = Apart ? sum[r][c] + difference * difference : __fma_rn(of_a[r], of_b[c], sum[r][c]);
            }
        }
      }
#pragma unroll
      for (int r = 0; r < kEach; ++r)
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
          double folded = sum[r][c];
#pragma unroll
          for (int other = 1; other < kTurn; other *= 2) folded += __shfl_xor_sync(kAll, folded, other);
          const int pair = r * kEach + c;
          if (mine == pair / 2) total[pair % 2] += folded;
        }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int pair = 2 * mine + k, at = (row + pair / kEach) * kWide + column + pair % kEach;
      tiles.sums[(listed * kPairs + at) * groups + group] = total[k];
    }
  }
}

}  // namespace

void combine(const HeldRows& rows, const CombineSetting& how, float* out, const LaunchPlace& where) {
  const unsigned fours = grid((rows.size + kThreads * kFour - 1) / (kThreads * kFour), where.device);
  if (how.kind == kMeans) return launch("combine", where, fours, mean_kernel, rows, out);
  if (how.kind == kTrims && rows.count <= 16) {
    void (*const kernels[])(HeldRows, int, float*) = {trimmed_kernel<4>, trimmed_kernel<8>, trimmed_kernel<12>,
                                                      trimmed_kernel<16>};
    return launch("combine", where, fours, kernels[(rows.count - 1) / 4], rows, static_cast<int>(how.cut), out);
  }
  const int width = width_of(rows.count);
  launch("combine", where, grid((rows.size + width - 1) / width, where.device), sorted_kernel, rows, width, how, out);
}

void pair_sums(const HeldRows& rows, const Tiles& tiles, const LaunchPlace& where) {
  const LaunchShape shape(grid(groups_of(rows.size) * tiles.count, where.device), kPairThreads);
  launch("sums of pairs", where, shape, tiles.apart ? pairs_kernel<true> : pairs_kernel<false>, rows, tiles);
}

}  // namespace fastagg::cuda
