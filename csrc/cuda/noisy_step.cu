// Takes a step along a single or flush direction, with Gaussian noise (math/noise.h) that is drawn in the same pass.
#include "../math/noise.h"
#include "advance.cuh"
#include "source.cuh"

namespace fastagg::cuda {
namespace {

// Draws the normal numbers for a block of 1,024 elements with one warp. Each lane makes two ChaCha20 calls.
__device__ __forceinline__ void draw(const ChaChaKey& key, int64_t block, float* numbers) {
#pragma unroll 1
  for (int call = lane(); call < kNoiseCalls; call += kWarp) {
    const auto counter = static_cast<uint64_t>(block * kNoiseCalls + call);
    const uint32_t place[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
    uint32_t words[16];
    chacha20<ChaChaScalar>(key, place, words);
#pragma unroll
    for (int w = 0; w < 8; ++w)
      normal_pair<ChaChaScalar>(words[w], words[w + 8], numbers[w * kNoiseCalls + call],
                                numbers[(w + 8) * kNoiseCalls + call]);
  }
}

// Adds noise to this thread's elements of the scale block at `begin`, and updates the past noise (plan.h). `numbers`
// are the scale block's normal numbers.
__device__ __forceinline__ void add_noise(const Noise& noise, const float* numbers, int64_t begin, int64_t size,
                                          Halves& d) {
  Halves normal;
  each_half(begin, size,
            [&](int h, int64_t, int64_t) { normal.half[h] = load<true>(numbers + h * kHalf + lane() * kFour, kFour); });
  if (noise.count == 0) {
    const float scale = noise.deviation * noise.scale;
    each([&](int h, int e) { d.half[h].v[e] = with_noise(d.half[h].v[e], scale, normal.half[h].v[e]); });
    return;
  }
  each([&](int h, int e) { normal.half[h].v[e] = with_noise(0.0f, noise.deviation, normal.half[h].v[e]); });
#pragma unroll 1
  for (int k = 0; k < noise.count; ++k) {
    const Halves past = load_halves<false>(noise.past[k].values, begin, size);
    each([&](int h, int e) {
      normal.half[h].v[e] = without_past(normal.half[h].v[e], noise.past[k].omega, past.half[h].v[e]);
    });
  }
#pragma unroll 1
  for (int k = 0; k < noise.count; ++k) {
    Halves past = load_halves<false>(noise.past[k].values, begin, size);
    each([&](int h, int e) {
      past.half[h].v[e] = next_past(past.half[h].v[e], noise.past[k].theta, normal.half[h].v[e]);
    });
    store_halves(false, noise.past[k].values, begin, size, past);
  }
  each([&](int h, int e) { d.half[h].v[e] = with_noise(d.half[h].v[e], noise.scale, normal.half[h].v[e]); });
}

template <bool Coded>
__global__ void __launch_bounds__(kThreads, 2)
    noisy_kernel(const __grid_constant__ Source source, bool aligned, BufferFields along,
                 const __grid_constant__ Noise noise, const __grid_constant__ Optimizer optimizer) {
  alignas(16) __shared__ float all[kWarps][kBlock];
  float* const numbers = all[threadIdx.x / kWarp];
  const Factors by = factors_of(along);
  const auto drawn = [&](int64_t block) {
    __syncwarp();  // waits until every lane has read the last block's numbers
    draw(noise.key, block, numbers);
    __syncwarp();
  };
  for_each_scale_block<Cursor>(source, aligned, drawn, [&](bool whole, Cursor& reader, int64_t begin, int j) {
    const int64_t size = source.size;
    MomentsForm<Coded> held{};
    Halves x{}, d{}, acc{};
    loading(whole, [&](auto w) {
      constexpr bool kWhole = decltype(w)::value;
      load_block<kWhole>(held, optimizer.moments, begin, size);
      x = load_halves<kWhole>(optimizer.x, begin, size);
      if (along.acc != nullptr) acc = load_halves<kWhole>(along.acc, begin, size);
      d = read_halves<kWhole>(reader, begin, size);
    });
    each([&](int h, int e) {
      float& to = d.half[h].v[e];
      to = along.acc == nullptr ? direction_of<kSingle>(to, 0.0f, 0.0f, by, along.scale)
                                : direction_of<kFlush>(to, 0.0f, acc.half[h].v[e], by, along.scale);
    });
    add_noise(noise, numbers + j * kScaleBlock, begin, size, d);
    advance(optimizer, held, whole, begin, size, d, x);
  });
}

}  // namespace

void noisy_step(const Update& update, const Direction& direction, const Optimizer& optimizer,
                const LaunchPlace& where) {
  const bool aligned =
      all_aligned(direction.buffer.acc, optimizer.x, optimizer.x_out) && moments_aligned(optimizer.moments);
  launch("a step with noise", where, warps(blocks_of(update.size), where.device),
         optimizer.moments.coded() ? noisy_kernel<true> : noisy_kernel<false>, source_of(update), aligned,
         summed_of(direction), direction.noise, optimizer);
}

}  // namespace fastagg::cuda
