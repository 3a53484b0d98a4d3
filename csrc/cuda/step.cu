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

struct Factors {
  float gain, weight, both;
};

// `Rows` rows of 128 elements: two of a full block, or one that may end early.
template <int Kind, int Along, int Rows, typename Reader>
__device__ __forceinline__ void step_rows(Reader& reader, int64_t at, int64_t left, const DirectionArgs& direction,
                                          const Factors& by, const cpu::Optimizer& optimizer, bool keep) {
  constexpr bool kWhole = Rows > 1, kM = kHasM[Kind], kV = kHasV[Kind], kVhat = kHasVhat[Kind];
  Four d[Rows], x[Rows], other[Rows];
  Moments moments[Rows];
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    const int64_t here = at + r * kLanes;
    d[r] = keep ? reader.template read<kWhole>(here, left) : Four{};
    x[r] = load<kWhole>(optimizer.x + here, left);
    if constexpr (Along == cpu::kFlush) other[r] = load<kWhole>(direction.acc + here, left);
    if constexpr (Along == cpu::kBlend) other[r] = load<kWhole>(direction.base + here, left);
    moments[r] = load_moments<kWhole>(optimizer, kM, kV, kVhat, here, left);
  }
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    const int64_t here = at + r * kLanes;
#pragma unroll
    for (int e = 0; e < kFour; ++e) {
      float& u = d[r].v[e];
      if constexpr (Along == cpu::kSingle) u = by.both * u;
      if constexpr (Along == cpu::kFlush) u = (keep ? other[r].v[e] + by.both * u : other[r].v[e]) * direction.scale;
      if constexpr (Along == cpu::kBlend) u = keep ? by.weight * ((other[r].v[e] - x[r].v[e]) + by.gain * u) : 0.0f;
    }
    store<kWhole>(optimizer.x_out + here, left, optimize_four<Kind>(d[r], x[r], moments[r], optimizer.hyper));
    store_moments<kWhole>(optimizer, kM, kV, kVhat, here, left, moments[r]);
  }
}

template <int Kind, int Along, typename Reader>
__global__ void __launch_bounds__(kThreads, 2)
    step_kernel(const __grid_constant__ Source source, bool aligned, DirectionArgs direction, cpu::Optimizer optimizer,
                const Verdict* verdict) {
  const bool keep = kept(verdict);
  const float gain = static_cast<float>(verdict == nullptr ? direction.gain : direction.gain * verdict->gain);
  const float weight = static_cast<float>(verdict == nullptr ? direction.weight : direction.weight * verdict->weight);
  const Factors by{gain, weight, gain * weight};
  for_each_row<Reader>(source, aligned, [&](auto rows, Reader& reader, int64_t at, int64_t left) {
    step_rows<Kind, Along, decltype(rows)::value>(reader, at, left, direction, by, optimizer, keep);
  });
}

template <int Rows, typename Reader>
__device__ __forceinline__ void accumulate_rows(Reader& reader, int64_t at, int64_t left, const float* acc, float by,
                                                float* acc_out, bool keep) {
  constexpr bool kWhole = Rows > 1;
  Four given[Rows], sum[Rows];
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    given[r] = keep ? reader.template read<kWhole>(at + r * kLanes, left) : Four{};
    sum[r] = acc != nullptr ? load<kWhole>(acc + at + r * kLanes, left) : Four{};
  }
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
#pragma unroll
    for (int e = 0; e < kFour; ++e) {
      const float change = by * given[r].v[e];
      sum[r].v[e] = acc == nullptr ? change : keep ? sum[r].v[e] + change : sum[r].v[e];
    }
    store<kWhole>(acc_out + at + r * kLanes, left, sum[r]);
  }
}

template <typename Reader>
__global__ void __launch_bounds__(kThreads, 2)
    accumulate_kernel(const __grid_constant__ Source source, bool aligned, const float* acc, double weight,
                      float* acc_out, const Verdict* verdict) {
  const bool keep = kept(verdict);
  if (!keep && acc == acc_out) return;
  const float by = static_cast<float>(verdict == nullptr ? weight : weight * verdict->gain * verdict->weight);
  for_each_row<Reader>(source, aligned, [&](auto rows, Reader& reader, int64_t at, int64_t left) {
    accumulate_rows<decltype(rows)::value>(reader, at, left, acc, by, acc_out, keep);
  });
}

using StepKernel = void (*)(Source, bool, DirectionArgs, cpu::Optimizer, const Verdict*);

template <int Kind, typename Reader>
constexpr StepKernel kStepKernels[] = {step_kernel<Kind, cpu::kSingle, Reader>, step_kernel<Kind, cpu::kFlush, Reader>,
                                       step_kernel<Kind, cpu::kBlend, Reader>};

template <int Kind>
StepKernel step_kernel_for(cpu::DirectionKind along, bool flat) {
  return flat ? kStepKernels<Kind, Flat>[along] : kStepKernels<Kind, Cursor>[along];
}

}  // namespace

void step(const cpu::Update& update, const cpu::Direction& direction, double gain, double weight,
          const cpu::Optimizer& optimizer, const Verdict* verdict, const Where& where) {
  const DeviceGuard guard(where.device);
  const DirectionArgs given{direction.kind, direction.acc, direction.base, gain, weight, direction.scale};
  constexpr decltype(&step_kernel_for<kSgd>) kKernels[kOptimizerKinds] = {
      step_kernel_for<kSgd>,  step_kernel_for<kMomentum>, step_kernel_for<kAdam>,     step_kernel_for<kAmsgrad>,
      step_kernel_for<kYogi>, step_kernel_for<kAdagrad>,  step_kernel_for<kLookahead>};
  const bool aligned = all_aligned(direction.acc, direction.base, optimizer.x, optimizer.x_out, optimizer.m,
                                   optimizer.v, optimizer.vhat);
  const Source source = source_of(update);
  launch("server step", where, warps(blocks_of(update.size), where.device),
         kKernels[optimizer.kind](direction.kind, source.flat != nullptr), source, aligned, given, optimizer, verdict);
}

void accumulate(const cpu::Update& update, const float* acc, double weight, float* acc_out, const Verdict* verdict,
                const Where& where) {
  const DeviceGuard guard(where.device);
  const Source source = source_of(update);
  launch("accumulate", where, warps(blocks_of(update.size), where.device),
         source.flat != nullptr ? accumulate_kernel<Flat> : accumulate_kernel<Cursor>, source,
         all_aligned(acc, acc_out), acc, weight, acc_out, verdict);
}

}  // namespace fastagg::cuda
