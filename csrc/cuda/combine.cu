// Updates that wait for each other: their elements combined (math/combine.h), and sums over pairs of them.
#include "../math/combine.h"
#include "norms.cuh"

namespace fastagg::cuda {
namespace {

// Elements at..at+3 of a row, times its factor. Only `left` of them exist; the others are 0.
__device__ __forceinline__ Four read_four(const HeldRow& row, int64_t at, int64_t left) {
  Four found{};
  if (row.data != nullptr && row.dtype == kFloat32) {
    const float* const in = static_cast<const float*>(row.data) + at;
    found = left >= kFour ? load<true>(in, left) : load<false>(in, left);
  } else {
#pragma unroll 1
    for (int e = 0; e < kFour && e < left; ++e) {
      const float value = row.data != nullptr ? widen(row.dtype, static_cast<const uint16_t*>(row.data)[at + e])
                                              : number_at(row.wire, at + e);
#pragma unroll
      for (int k = 0; k < kFour; ++k) found.v[k] = k == e ? value : found.v[k];
    }
  }
#pragma unroll
  for (int e = 0; e < kFour; ++e) found.v[e] = row.by * found.v[e];
  return found;
}

__device__ __forceinline__ void put_four(float* to, const Four& value) {
  *reinterpret_cast<float4*>(to) = make_float4(value.v[0], value.v[1], value.v[2], value.v[3]);
}

__global__ void __launch_bounds__(kThreads, 2) mean_kernel(const HeldRows rows, float* out) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kFour;
  for (int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kFour; at < rows.size; at += step) {
    Four sum{};
#pragma unroll 1
    for (int64_t k = 0; k < rows.count; ++k) {
      if (rows.of[k].by == 0.0f) continue;
      const Four row = read_four(rows.of[k], at, rows.size - at);
#pragma unroll
      for (int e = 0; e < kFour; ++e) sum.v[e] = sum.v[e] + row.v[e];
    }
    store(at + kFour <= rows.size, out + at, rows.size - at, sum);
  }
}

constexpr int kMeans = place_in<Mean>(Combines{}), kTrims = place_in<Trimmed>(Combines{});
constexpr int kSortedNumbers = 8 * static_cast<int>(kMostCombined);  // 32 KB of shared memory

// So many elements of all rows are sorted at a time: a power of two.
inline int width_of(int64_t count) {
  int width = kThreads;
  while (width * count > kSortedNumbers) width /= 2;
  return width;
}

// Value k of the tile's element c is at k*width + c. A block of threads sorts a tile. The comparisons of a stage of the
// network have no place in common, so they may come in any order.
__global__ void __launch_bounds__(kThreads, 2)
    sorted_kernel(const HeldRows rows, int width, Combining how, float* out) {
  alignas(16) __shared__ float values[kSortedNumbers];
  const int count = static_cast<int>(rows.count), fours = width / kFour, thread = static_cast<int>(threadIdx.x);
  const int column = thread % width, turn = thread / width, turns = kThreads / width;
  const int64_t step = static_cast<int64_t>(gridDim.x) * width;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * width; begin < rows.size; begin += step) {
    __syncthreads();  // the tile before is read
    for (int q = thread; q < count * fours; q += kThreads) {
      const int k = q / fours, c = q % fours * kFour;
      put_four(values + k * width + c, read_four(rows.of[k], begin + c, rows.size - begin - c));
    }
    for (int sorted = 1; sorted < count; sorted *= 2)
      for (int apart = sorted; apart >= 1; apart /= 2) {
        __syncthreads();
        for (int q = turn;; q += turns) {
          const int i = apart % sorted + q / apart * 2 * apart + q % apart;
          if (i + apart >= count) break;
          if (i / (2 * sorted) == (i + apart) / (2 * sorted))
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

// -- sums over pairs

constexpr int kWide = static_cast<int>(kSide), kPairs = kWide * kWide, kTurn = static_cast<int>(kSumLanes);
constexpr int kPart = static_cast<int>(kBlock) / 2, kRoom = kPart + kTurn;  // of a block, in shared memory
constexpr int kEach = kPairs * kTurn / kThreads;  // pairs of a thread, which have the same second row

// A block of threads adds a tile of pairs over a group. A thread has a lane of its pairs; lanes fold after a block of
// 1,024 elements, as on the CPU.
template <bool Apart>
__global__ void __launch_bounds__(kThreads, 2) pairs_kernel(const HeldRows rows, const Tiles tiles) {
  alignas(16) __shared__ float held[2][kWide][kRoom];
  const int thread = static_cast<int>(threadIdx.x), mine = thread % kTurn;
  const int column = thread / kTurn % kWide, row = thread / (kTurn * kWide) * kEach;
  const int64_t groups = groups_of(rows.size), wide = (rows.count + kWide - 1) / kWide;
  for (int64_t job = blockIdx.x; job < groups * tiles.count; job += gridDim.x) {
    const int64_t group = job / tiles.count, listed = job % tiles.count, tile = tiles.listed[listed];
    const int64_t end = (group + 1) * kGroup < rows.size ? (group + 1) * kGroup : rows.size;
    double total[kEach] = {};
    for (int64_t block = group * kGroup; block < end; block += kBlock) {
      double sum[kEach] = {};
      for (int64_t begin = block; begin < block + kBlock && begin < end; begin += kPart) {
        const int there = end - begin < kPart ? static_cast<int>(end - begin) : kPart;
        const int fours = (there + kTurn - 1) / kTurn * (kTurn / kFour);  // of whole turns; missing elements are 0
        __syncthreads();                                                  // the part before is read
        for (int q = thread; q < 2 * kWide * fours; q += kThreads) {
          const int side = q / (kWide * fours), k = q / fours % kWide, at = q % fours * kFour;
          const int64_t which = (side == 0 ? tile / wide : tile % wide) * kWide + k;
          put_four(&held[side][k][at],
                   which < rows.count ? read_four(rows.of[which], begin + at, end - begin - at) : Four{});
        }
        __syncthreads();
        for (int i = mine; i < there; i += kTurn) {
          const double b = static_cast<double>(held[1][column][i]);
#pragma unroll
          for (int r = 0; r < kEach; ++r) {
            const double a = static_cast<double>(held[0][row + r][i]), difference = a - b;
            sum[r] = Apart ? sum[r] + difference * difference : __fma_rn(a, b, sum[r]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int other = 1; other < kTurn; other *= 2) sum[r] += __shfl_xor_sync(kAll, sum[r], other);
        total[r] += sum[r];
      }
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r)
      if (mine == 0) tiles.sums[(listed * kPairs + (row + r) * kWide + column) * groups + group] = total[r];
  }
}

}  // namespace

void combine(const HeldRows& rows, const Combining& how, float* out, const Where& where) {
  const DeviceGuard guard(where.device);
  if (how.kind == kMeans) {
    const int64_t each = kThreads * kFour;
    return launch("combine", where, grid((rows.size + each - 1) / each, where.device), mean_kernel, rows, out);
  }
  const int width = width_of(rows.count);
  launch("combine", where, grid((rows.size + width - 1) / width, where.device), sorted_kernel, rows, width, how, out);
}

void pair_sums(const HeldRows& rows, const Tiles& tiles, const Where& where) {
  const DeviceGuard guard(where.device);
  launch("sums of pairs", where, grid(groups_of(rows.size) * tiles.count, where.device),
         tiles.apart ? pairs_kernel<true> : pairs_kernel<false>, rows, tiles);
}

}  // namespace fastagg::cuda
