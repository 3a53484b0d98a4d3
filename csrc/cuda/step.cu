// Takes server steps along single, flush and blend directions. One pass computes the direction and applies the
// optimizer. Also adds an update to a sum. The arithmetic is that of csrc/math, without contraction.
#include <type_traits>

#include "moments.cuh"
#include "optimizer.cuh"
#include "source.cuh"

namespace fastagg::cuda {
namespace {

// Calls visit(rows, reader, at, left) for this thread's four elements of every row of 128 elements. `rows` is a
// constant: the number of neighbouring rows in one call, 2 in a whole aligned block of 1,024, otherwise 1. `visit`
// should load both rows before it computes.
template <typename Reader, typename Visit>
__device__ __forceinline__ void for_each_row(const typename Reader::SourceData& source, bool aligned, Visit visit) {
  for (int64_t block = warp_of_grid(); block * kBlock < source.size; block += warps_of_grid()) {
    Reader reader(source, block * kBlock);
    const int64_t begin = block * kBlock + lane() * kFour;
    if (aligned && (block + 1) * kBlock <= source.size) {
#pragma unroll 1
      for (int row = 0; row < kRows; row += 2)
        visit(std::integral_constant<int, 2>{}, reader, begin + row * kRow, int64_t{kFour});
    } else {
#pragma unroll 1
      for (int row = 0; row < kRows && begin + row * kRow < source.size; ++row)
        visit(std::integral_constant<int, 1>{}, reader, begin + row * kRow, source.size - (begin + row * kRow));
    }
  }
}

// Steps this thread's elements of N rows. N is 2 in whole aligned blocks. Otherwise N is 1, and the row may end early.
template <typename Kind, DirectionKind Direct, int N, typename Reader>
__device__ __forceinline__ void step_rows(Reader& reader, int64_t at, int64_t left, const BufferFields& along,
                                          const Factors& by, const Optimizer& optimizer) {
  constexpr bool kWhole = N > 1;
  constexpr MomentPresence kHas{Kind::kM, Kind::kV, Kind::kVhat};
  Quad d[N], x[N], other[N];
  ThreadMoments held[N];
#pragma unroll
  for (int r = 0; r < N; ++r) {
    const int64_t here = at + r * kRow;
    d[r] = reader.template read<kWhole>(here, left);
    x[r] = load<kWhole>(optimizer.x + here, left);
    if constexpr (Direct == kFlush) other[r] = load<kWhole>(along.acc + here, left);
    if constexpr (Direct == kBlend) other[r] = load<kWhole>(along.base + here, left);
    held[r] = load_moments<kWhole>(kHas, optimizer.moments, here, left);
  }
#pragma unroll
  for (int r = 0; r < N; ++r) {
#pragma unroll
    for (int e = 0; e < kFour; ++e)
      d[r].v[e] = direction_of<Direct>(d[r].v[e], x[r].v[e], other[r].v[e], by, along.scale);
    const Quad out = stepped<Kind>(optimizer.hyper, d[r], x[r], held[r]);
    store_step(kWhole, kHas, optimizer, at + r * kRow, left, out, held[r]);
  }
}

template <typename Kind, DirectionKind Direct, typename Reader>
__global__ void __launch_bounds__(kThreads, 2) step_kernel(const __grid_constant__ typename Reader::SourceData source,
                                                           bool aligned, BufferFields along, Optimizer optimizer) {
  const Factors by = factors_of(along);
  for_each_row<Reader>(source, aligned, [&](auto rows, Reader& reader, int64_t at, int64_t left) {
    step_rows<Kind, Direct, decltype(rows)::value>(reader, at, left, along, by, optimizer);
  });
}

// Steps a scale block with 8-bit moments.
template <DirectionKind Direct, typename Reader>
__device__ __forceinline__ void coded_rows(Reader& reader, bool whole, int64_t begin, int64_t size,
                                           const BufferFields& along, const Factors& by, const Optimizer& optimizer) {
  CodedMoments held{};
  Halves x, d{}, other{};
  loading(whole, [&](auto w) {
    constexpr bool kWhole = decltype(w)::value;
    load_block<kWhole>(held, optimizer.moments, begin, size);
    x = load_halves<kWhole>(optimizer.x, begin, size);
    if constexpr (Direct == kFlush) other = load_halves<kWhole>(along.acc, begin, size);
    if constexpr (Direct == kBlend) other = load_halves<kWhole>(along.base, begin, size);
    d = read_halves<kWhole>(reader, begin, size);
  });
  each([&](int h, int e) {
    d.half[h].v[e] = direction_of<Direct>(d.half[h].v[e], x.half[h].v[e], other.half[h].v[e], by, along.scale);
  });
  advance(optimizer, held, whole, begin, size, d, x);
}

template <DirectionKind Direct, typename Reader>
__global__ void __launch_bounds__(kThreads, 2) coded_kernel(const __grid_constant__ typename Reader::SourceData source,
                                                            bool aligned, BufferFields along, Optimizer optimizer) {
  const Factors by = factors_of(along);
  for_each_scale_block<Reader>(
      source, aligned, [](int64_t) {},
      [&](bool whole, Reader& reader, int64_t begin, int) {
        coded_rows<Direct>(reader, whole, begin, source.size, along, by, optimizer);
      });
}

template <int N, typename Reader>
__device__ __forceinline__ void accumulate_rows(Reader& reader, int64_t at, int64_t left, const float* acc, float by,
                                                float* acc_out) {
  constexpr bool kWhole = N > 1;
  Quad input[N], sum[N];
#pragma unroll
  for (int r = 0; r < N; ++r) {
    input[r] = reader.template read<kWhole>(at + r * kRow, left);
    sum[r] = acc != nullptr ? load<kWhole>(acc + at + r * kRow, left) : Quad{};
  }
#pragma unroll
  for (int r = 0; r < N; ++r) {
#pragma unroll
    for (int e = 0; e < kFour; ++e) {
      const float change = by * input[r].v[e];
      sum[r].v[e] = acc == nullptr ? change : sum[r].v[e] + change;
    }
    store<kWhole>(acc_out + at + r * kRow, left, sum[r]);
  }
}

template <typename Reader>
__global__ void __launch_bounds__(kThreads, 2)
    accumulate_kernel(const __grid_constant__ typename Reader::SourceData source, bool aligned, const float* acc,
                      float by, float* acc_out) {
  for_each_row<Reader>(source, aligned, [&](auto rows, Reader& reader, int64_t at, int64_t left) {
    accumulate_rows<decltype(rows)::value>(reader, at, left, acc, by, acc_out);
  });
}

template <typename Reader>
using StepKernel = void (*)(typename Reader::SourceData, bool, BufferFields, Optimizer);

// Returns the kernel for a direction and an optimizer. The table has a row for 8-bit moments, and then one for each
// optimizer. A row has a kernel for each direction.
template <typename Reader, typename... Kinds>
StepKernel<Reader> step_kernel_for(List<Kinds...>, const Optimizer& optimizer, DirectionKind direct) {
  constexpr StepKernel<Reader> kKernels[][3] = {
      {coded_kernel<kSingle, Reader>, coded_kernel<kFlush, Reader>, coded_kernel<kBlend, Reader>},
      {step_kernel<Kinds, kSingle, Reader>, step_kernel<Kinds, kFlush, Reader>, step_kernel<Kinds, kBlend, Reader>}...};
  return kKernels[optimizer.moments.coded() ? 0 : 1 + optimizer.kind][direct];
}

}  // namespace

void step(const Update& update, const Direction& direction, const Optimizer& optimizer, const LaunchPlace& where) {
  if (direction.kind == kMean || direction.kind == kCalibrated) return cached_step(update, direction, optimizer, where);
  if (direction.noise.deviation > 0.0f) return noisy_step(update, direction, optimizer, where);
  const BufferFields along = summed_of(direction);
  const bool aligned =
      all_aligned(along.acc, along.base, optimizer.x, optimizer.x_out) && moments_aligned(optimizer.moments);
  const unsigned blocks = warps(blocks_of(update.size), where.device);
  read_with(update, [&](auto with, const auto& source) {
    using Reader = typename decltype(with)::Reader;
    launch("server step", where, blocks, step_kernel_for<Reader>(Optimizers{}, optimizer, direction.kind), source,
           aligned, along, optimizer);
  });
}

void accumulate(const Update& update, const float* acc, double weight, float* acc_out, const LaunchPlace& where) {
  read_with(update, [&](auto with, const auto& source) {
    launch("accumulate", where, warps(blocks_of(update.size), where.device),
           accumulate_kernel<typename decltype(with)::Reader>, source, all_aligned(acc, acc_out), acc,
           static_cast<float>(weight), acc_out);
  });
}

}  // namespace fastagg::cuda
