// Direction and optimizer in one pass: see csrc/cpu/step.h for the bytes. Element math is csrc/math/optimizer.h, the
// CPU's own, compiled without contraction.
#include "optimizer.cuh"
#include "source.cuh"

namespace fastagg::cuda {
namespace {

struct DirectionArgs {
  cpu::DirectionKind kind;
  const float* acc;
  const float* base;
  double gain, weight;
  float scale;
};

__device__ __forceinline__ bool kept(const Verdict* verdict) { return verdict == nullptr || verdict->keep != 0.0; }

template <int Kind, bool Aligned>
__global__ void __launch_bounds__(kThreads, 2)
    step_kernel(const __grid_constant__ Source source, DirectionArgs direction, cpu::Optimizer optimizer,
                const Verdict* verdict) {
  constexpr bool m = kHasM[Kind], v = kHasV[Kind], vhat = kHasVhat[Kind];
  const bool keep = kept(verdict);
  const float gain = static_cast<float>(verdict == nullptr ? direction.gain : direction.gain * verdict->gain);
  const float weight = static_cast<float>(verdict == nullptr ? direction.weight : direction.weight * verdict->weight);
  const float both = gain * weight;
  for (int64_t block = warp_of_grid(); block * kBlock < source.size; block += warps_of_grid()) {
    Cursor cursor(source, block * kBlock);
#pragma unroll 1
    for (int row = 0; row < kRows; ++row) {
      const int64_t at = block * kBlock + row * kLanes + lane() * kFour;
      const int64_t left = source.size - at;
      if (left <= 0) break;
      Four d = keep ? cursor.read(at, left) : Four{};
      const Four x = load<Aligned>(optimizer.x + at, left);
      Moments moments = load_moments<Aligned>(optimizer, m, v, vhat, at, left);
      if (direction.kind == cpu::kSingle) {
#pragma unroll
        for (int e = 0; e < kFour; ++e) d.v[e] = both * d.v[e];
      } else if (direction.kind == cpu::kFlush) {
        const Four acc = load<Aligned>(direction.acc + at, left);
#pragma unroll
        for (int e = 0; e < kFour; ++e) d.v[e] = (keep ? acc.v[e] + both * d.v[e] : acc.v[e]) * direction.scale;
      } else if (keep) {
        const Four base = load<Aligned>(direction.base + at, left);
#pragma unroll
        for (int e = 0; e < kFour; ++e) d.v[e] = weight * ((base.v[e] - x.v[e]) + gain * d.v[e]);
      }
      const Four out = optimize_four<Kind>(d, x, moments, optimizer.hyper);
      store<Aligned>(optimizer.x_out + at, left, out);
      store_moments<Aligned>(optimizer, m, v, vhat, at, left, moments);
    }
  }
}

template <bool Aligned>
__global__ void __launch_bounds__(kThreads) accumulate_kernel(const __grid_constant__ Source source, const float* acc,
                                                              double weight, float* acc_out, const Verdict* verdict) {
  const bool keep = kept(verdict);
  if (!keep && acc == acc_out) return;
  const float by = static_cast<float>(verdict == nullptr ? weight : weight * verdict->gain * verdict->weight);
  for (int64_t block = warp_of_grid(); block * kBlock < source.size; block += warps_of_grid()) {
    Cursor cursor(source, block * kBlock);
#pragma unroll 1
    for (int row = 0; row < kRows; ++row) {
      const int64_t at = block * kBlock + row * kLanes + lane() * kFour;
      const int64_t left = source.size - at;
      if (left <= 0) break;
      const Four given = keep ? cursor.read(at, left) : Four{};
      Four sum{};
      if (acc != nullptr) sum = load<Aligned>(acc + at, left);
#pragma unroll
      for (int e = 0; e < kFour; ++e) {
        if (acc == nullptr)
          sum.v[e] = by * given.v[e];
        else if (keep)
          sum.v[e] = sum.v[e] + by * given.v[e];
      }
      store<Aligned>(acc_out + at, left, sum);
    }
  }
}

template <int Kind>
void launch_step(const cpu::Update& update, const DirectionArgs& direction, const cpu::Optimizer& optimizer,
                 const Verdict* verdict, const Where& where) {
  const bool aligned = all_aligned(direction.acc, direction.base, optimizer.x,
                                   static_cast<const float*>(optimizer.x_out), static_cast<const float*>(optimizer.m),
                                   static_cast<const float*>(optimizer.v), static_cast<const float*>(optimizer.vhat));
  launch("server step", where, warps(blocks_of(update.size), where.device),
         aligned ? step_kernel<Kind, true> : step_kernel<Kind, false>, source_of(update), direction, optimizer,
         verdict);
}

}  // namespace

void step(const cpu::Update& update, const cpu::Direction& direction, double gain, double weight,
          const cpu::Optimizer& optimizer, const Verdict* verdict, const Where& where) {
  const DeviceGuard guard(where.device);
  const DirectionArgs given{direction.kind, direction.acc, direction.base, gain, weight, direction.scale};
  constexpr decltype(&launch_step<kSgd>) kLaunch[kOptimizerKinds] = {
      launch_step<kSgd>,  launch_step<kMomentum>, launch_step<kAdam>,     launch_step<kAmsgrad>,
      launch_step<kYogi>, launch_step<kAdagrad>,  launch_step<kLookahead>};
  kLaunch[optimizer.kind](update, given, optimizer, verdict, where);
}

void accumulate(const cpu::Update& update, const float* acc, double weight, float* acc_out, const Verdict* verdict,
                const Where& where) {
  const DeviceGuard guard(where.device);
  const bool aligned = all_aligned(acc, static_cast<const float*>(acc_out));
  launch("accumulate", where, warps(blocks_of(update.size), where.device),
         aligned ? accumulate_kernel<true> : accumulate_kernel<false>, source_of(update), acc, weight, acc_out,
         verdict);
}

}  // namespace fastagg::cuda
