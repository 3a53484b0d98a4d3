// Operations without a step: computing the sum over clients, reading a row, setting and copying memory.
#include "rows.cuh"

namespace fastagg::cuda {
namespace {

// The rows of all slots, one after the other in memory.
struct RowTable {
  Row first;
  int64_t row_bytes, row_scales, slots;

  __device__ __forceinline__ Row row(int64_t slot) const {
    return {static_cast<char*>(first.data) + slot * row_bytes, first.scales + slot * row_scales};
  }
};

__device__ __forceinline__ void write(float* out, int64_t index, int64_t size, bool aligned, const Halves& x) {
  const int64_t begin = index * kScaleBlock;
  store_halves(aligned && begin + kScaleBlock <= size, out, begin, size, x);
}

// Computes the sum over clients in the `count` blocks first, first + stride, ... Adds slot after slot, in double. One
// warp processes a scale block.
template <typename Format>
__global__ void __launch_bounds__(kThreads)
    recompute_kernel(RowTable rows, int64_t size, bool aligned, const float* weights, float* sum, int64_t first,
                     int64_t count, int64_t stride) {
  for (int64_t item = warp_of_grid(); item < count * kScaleBlocks; item += warps_of_grid()) {
    const int64_t index = (first + item / kScaleBlocks * stride) * kScaleBlocks + item % kScaleBlocks;
    if (index * kScaleBlock >= size) continue;
    double total[2][kFour] = {};
    for (int64_t slot = 0; slot < rows.slots; ++slot) {
      const float weight = weights[slot];
      if (weight == 0.0f) continue;
      const Halves row = decode<Format>(rows.row(slot), index);
      each([&](int h, int e) { total[h][e] += static_cast<double>(weight * row.half[h].v[e]); });
    }
    Halves settled;
    each([&](int h, int e) { settled.half[h].v[e] = static_cast<float>(total[h][e]); });
    write(sum, index, size, aligned, settled);
  }
}

constexpr int kTogether = 4;

// Adds the rows of `Count` slots in order. All rows are loaded first, even rows of weight 0, so that loads overlap. If
// `weights` is null, every row has the weight `weight`.
template <typename Format, int Count>
__device__ __forceinline__ void add_slots(const RowTable& rows, int64_t slot, int64_t index, const float* weights,
                                          int64_t shift, float weight, double (&total)[2][kFour]) {
  Halves row[Count];
#pragma unroll
  for (int s = 0; s < Count; ++s) row[s] = decode<Format>(rows.row(slot + s), index);
#pragma unroll
  for (int s = 0; s < Count; ++s) {
    const float factor = weights == nullptr ? weight : weights[slot + s - shift];
    if (factor == 0.0f) continue;
    each([&](int h, int e) { total[h][e] += static_cast<double>(factor * row[s].half[h].v[e]); });
  }
}

// Adds the rows of jobs to their shadows. One warp processes a scale block of a job.
template <typename Format>
__global__ void __launch_bounds__(kThreads)
    add_kernel(RowTable rows, int64_t size, const RowJob* jobs, int64_t count, const float* weights, float weight) {
  for (int64_t item = warp_of_grid(); item < count * kScaleBlocks; item += warps_of_grid()) {
    const RowJob job = jobs[item / kScaleBlocks];
    const int64_t part = item % kScaleBlocks, index = job.block * kScaleBlocks + part;
    const int64_t begin = part * kScaleBlock,
                  left_of_block = size - job.block * kBlock;  // `begin`: the scale block's place in the shadow
    if (begin >= left_of_block) continue;
    double total[2][kFour];
    each_half(begin, left_of_block, [&](int h, int64_t at, int64_t left) {
#pragma unroll
      for (int e = 0; e < kFour; ++e) total[h][e] = e < left && !job.fresh ? job.shadow[at + e] : 0.0;
    });
    int64_t slot = job.first_slot;
    for (; slot + kTogether <= job.last_slot; slot += kTogether)
      add_slots<Format, kTogether>(rows, slot, index, weights, job.shift, weight, total);
    for (; slot < job.last_slot; ++slot) add_slots<Format, 1>(rows, slot, index, weights, job.shift, weight, total);
    each_half(begin, left_of_block, [&](int h, int64_t at, int64_t left) {
#pragma unroll
      for (int e = 0; e < kFour; ++e)
        if (e < left) job.shadow[at + e] = total[h][e];
    });
  }
}

// Rounds the jobs' shadows to fp32, and writes them to the sum. One block of threads processes a job.
__global__ void __launch_bounds__(kThreads) settle_kernel(const RowJob* jobs, int64_t count, float* sum, int64_t size) {
  for (int64_t index = blockIdx.x; index < count; index += gridDim.x) {
    const RowJob job = jobs[index];
    const int64_t begin = job.block * kBlock;
    for (int64_t i = threadIdx.x; i < kBlock && begin + i < size; i += kThreads)
      sum[begin + i] = static_cast<float>(job.shadow[i]);
  }
}

template <typename Format>
__global__ void __launch_bounds__(kThreads) read_kernel(Row row, int64_t size, bool aligned, float* out) {
  for (int64_t index = warp_of_grid(); index * kScaleBlock < size; index += warps_of_grid())
    write(out, index, size, aligned, decode<Format>(row, index));
}

}  // namespace

void recompute_sum(const Rows& rows, const float* weights, float* sum, const Blocks& blocks, const LaunchPlace& where) {
  if (blocks.last <= blocks.first) return;
  const int64_t count = (blocks.last - blocks.first + blocks.stride - 1) / blocks.stride;
  const RowTable table{rows.row(0), rows.row_bytes(), rows.row_scales(), rows.slots};
  launch_of(rows.format, RowFormats{}, [&](auto format) {
    launch("recompute sum", where, warps(count * kScaleBlocks, where.device), recompute_kernel<decltype(format)>, table,
           rows.size, all_aligned(sum), weights, sum, blocks.first, count, blocks.stride);
  });
}

void add_rows(const Rows& rows, const RowJob* jobs, int64_t count, const float* weights, float weight,
              const LaunchPlace& where) {
  if (count == 0) return;
  const RowTable table{rows.row(0), rows.row_bytes(), rows.row_scales(), rows.slots};
  launch_of(rows.format, RowFormats{}, [&](auto format) {
    launch("add rows", where, warps(count * kScaleBlocks, where.device), add_kernel<decltype(format)>, table, rows.size,
           jobs, count, weights, weight);
  });
}

void settle_rows(const RowJob* jobs, int64_t count, float* sum, int64_t size, const LaunchPlace& where) {
  if (count == 0) return;
  launch("settle rows", where, grid(count, where.device), settle_kernel, jobs, count, sum, size);
}

void zero(void* memory, int64_t bytes, const LaunchPlace& where) {
  const DeviceGuard guard(where.device);
  check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(where.stream)), "zero");
}

void copy(void* to, const void* from, int64_t bytes, const LaunchPlace& where) {
  const DeviceGuard guard(where.device);
  check(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, static_cast<cudaStream_t>(where.stream)),
      "copy");
}

void copy_now(void* to, const void* from, int64_t bytes, const LaunchPlace& where) {
  copy(to, from, bytes, where);
  const DeviceGuard guard(where.device);
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(where.stream)), "copy");
}

void read_row(const Rows& rows, int64_t slot, float* out, const LaunchPlace& where) {
  launch_of(rows.format, RowFormats{}, [&](auto format) {
    launch("read row", where, warps(padded(rows.size) / kScaleBlock, where.device), read_kernel<decltype(format)>,
           rows.row(slot), rows.size, all_aligned(out), out);
  });
}

}  // namespace fastagg::cuda
