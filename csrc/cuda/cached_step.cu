// A server step through a client cache in one pass: see csrc/cpu/cached_step.h for the meaning and the bytes.
#include "../math/running_sum.h"
#include "optimizer.cuh"
#include "rows.cuh"
#include "source.cuh"

namespace fastagg::cuda {
namespace {

constexpr int kMostTerms = 256;

struct Terms {
  int count;
  cpu::Term term[kMostTerms];
};

struct CachedArgs {
  cpu::CachedKind kind;
  bool takes_update;  // false: terms alone
  double gain;
  int64_t write, read;
  RandomKey random;
  cpu::RunningSum sum;
  float entering, leaving, sum_scale;
  const float* acc;
  float* acc_out;
  float weight, acc_scale;
  bool steps, has_m, has_v, has_vhat;
};

struct Sum {
  Four high;
  int8_t low[kFour];
};

template <bool Whole>
__device__ __forceinline__ Sum load_sum(const cpu::RunningSum& sum, int64_t at, int64_t left) {
  Sum found;
  found.high = load<Whole>(sum.high + at, left);
  if constexpr (Whole) {
    const uint32_t q = *reinterpret_cast<const uint32_t*>(sum.low + at);
#pragma unroll
    for (int e = 0; e < kFour; ++e) found.low[e] = static_cast<int8_t>(byte_of(q, e));
  } else {
#pragma unroll
    for (int e = 0; e < kFour; ++e) found.low[e] = e < left ? sum.low[at + e] : int8_t{0};
  }
  return found;
}

template <bool Whole>
__device__ __forceinline__ void store_sum(const cpu::RunningSum& sum, int64_t at, int64_t left, const Sum& value) {
  store<Whole>(sum.high + at, left, value.high);
  if constexpr (Whole) {
    uint32_t q = 0;
#pragma unroll
    for (int e = 0; e < kFour; ++e) q |= static_cast<uint32_t>(static_cast<uint8_t>(value.low[e])) << (8 * e);
    *reinterpret_cast<uint32_t*>(sum.low + at) = q;
  } else {
#pragma unroll
    for (int e = 0; e < kFour; ++e)
      if (e < left) sum.low[at + e] = value.low[e];
  }
}

// One scale block, by one warp.
template <RowFormat Format, bool Whole, typename Reader>
__device__ __forceinline__ void cached_block(Reader& reader, const Dice& dice, int64_t size, int64_t begin, int j,
                                             const cpu::Rows& rows, const CachedArgs& c, const Terms& terms,
                                             const cpu::Optimizer& optimizer, float gain, bool keep) {
  const int64_t index = begin / kScaleBlock;
  // Everything is asked for before anything is computed: what is in flight is what fills the memory.
  Halves given{}, old{}, x{};
  Sum sum[2]{};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t at = begin + h * kHalf + lane() * kFour;
    if (c.steps) x.half[h] = load<Whole>(optimizer.x + at, size - at);
    if (c.sum.high != nullptr) sum[h] = load_sum<Whole>(c.sum, at, size - at);
  }
  if (c.read >= 0) old = decode<Format>(rows, c.read, index);
  if (keep && c.takes_update) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t at = begin + h * kHalf + lane() * kFour;
      given.half[h] = reader.template read<Whole>(at, size - at);
#pragma unroll
      for (int e = 0; e < kFour; ++e) given.half[h].v[e] *= gain;
    }
  } else if (c.read >= 0) {
    given = old;  // a dropped update: the client's row stays what it was, zero where there was none
  }
  Halves entering = given;
  const auto keep_row = [&] {
    if (c.write < 0) return;
    __syncwarp();  // the old row, which may be this one, has been read
    if (keep || c.read < 0)
      entering = encode<Format>(rows, c.write, index, given, dice, j);
    else if (c.write != c.read)
      copy_stored<Format>(rows, c.read, c.write, index);
    __syncwarp();  // terms may read it
  };
  keep_row();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t at = begin + h * kHalf + lane() * kFour;
    const int64_t left = size - at;
    Four d;
    Moments moments{};
    if (c.steps) moments = load_moments<Whole>(optimizer, c.has_m, c.has_v, c.has_vhat, at, left);
    const auto add_terms = [&] {
      for (int t = 0; t < terms.count; ++t) {
        const Four row = decode<Format>(rows, terms.term[t].slot, index).half[h];
#pragma unroll
        for (int e = 0; e < kFour; ++e)
          add_change(sum[h].high.v[e], sum[h].low[e], terms.term[t].weight * row.v[e] - 0.0f);
      }
    };
    if (c.kind == cpu::kMean) {
      if (c.takes_update) {
#pragma unroll
        for (int e = 0; e < kFour; ++e)
          add_change(sum[h].high.v[e], sum[h].low[e],
                     c.entering * entering.half[h].v[e] - c.leaving * old.half[h].v[e]);
      }
      add_terms();
      store_sum<Whole>(c.sum, at, left, sum[h]);
#pragma unroll
      for (int e = 0; e < kFour; ++e) d.v[e] = sum[h].high.v[e] * c.sum_scale;
    } else {
#pragma unroll
      for (int e = 0; e < kFour; ++e) d.v[e] = old.half[h].v[e] * -c.weight + given.half[h].v[e] * c.weight;
      if (c.acc != nullptr) {
        const Four acc = load<Whole>(c.acc + at, left);
#pragma unroll
        for (int e = 0; e < kFour; ++e) d.v[e] = acc.v[e] + 1.0f * d.v[e];
      }
      if (!c.steps) {
        store<Whole>(c.acc_out + at, left, d);
      } else {
#pragma unroll
        for (int e = 0; e < kFour; ++e) d.v[e] = d.v[e] * c.acc_scale + sum[h].high.v[e] * c.sum_scale;
        if (terms.count > 0) {
          add_terms();
          store_sum<Whole>(c.sum, at, left, sum[h]);
        }
      }
    }
    if (c.steps) {
      const Four out = optimize_four(optimizer.kind, d, x.half[h], moments, optimizer.hyper);
      store<Whole>(optimizer.x_out + at, left, out);
      store_moments<Whole>(optimizer, c.has_m, c.has_v, c.has_vhat, at, left, moments);
    }
  }
}

template <RowFormat Format, typename Reader>
__global__ void __launch_bounds__(kThreads, 2)
    cached_kernel(const __grid_constant__ Source source, bool aligned, cpu::Rows rows, CachedArgs c,
                  const __grid_constant__ Terms terms, cpu::Optimizer optimizer, const Verdict* verdict) {
  const bool keep = verdict == nullptr || verdict->keep != 0.0;
  const float gain = static_cast<float>(verdict == nullptr ? c.gain : c.gain * verdict->gain * verdict->weight);
  for (int64_t block = warp_of_grid(); block * kBlock < source.size; block += warps_of_grid()) {
    Reader reader(source, block * kBlock);
    Dice dice{};
    if (Format != kRowFloat32 && c.write >= 0) dice = roll(c.random, block);
#pragma unroll 1
    for (int j = 0; j < kScaleBlocks; ++j) {
      const int64_t begin = block * kBlock + j * kScaleBlock;
      if (begin >= source.size) break;  // the same for the whole warp
      if (aligned && begin + kScaleBlock <= source.size)
        cached_block<Format, true>(reader, dice, source.size, begin, j, rows, c, terms, optimizer, gain, keep);
      else
        cached_block<Format, false>(reader, dice, source.size, begin, j, rows, c, terms, optimizer, gain, keep);
    }
  }
}

// A warp for every scale block; sums in double, slot after slot.
template <RowFormat Format>
__global__ void __launch_bounds__(kThreads)
    recompute_kernel(int64_t size, bool aligned, cpu::Rows rows, const float* weights, int64_t slots,
                     cpu::RunningSum sum, int64_t first, int64_t last) {
  for (int64_t index = first + warp_of_grid(); index < last; index += warps_of_grid()) {
    if (index * kScaleBlock >= size) return;
    double total[2][kFour] = {};
    for (int64_t slot = 0; slot < slots; ++slot) {
      const float weight = weights[slot];
      if (weight == 0.0f) continue;
      const Halves row = decode<Format>(rows, slot, index);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < kFour; ++e) total[h][e] += static_cast<double>(weight * row.half[h].v[e]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t at = index * kScaleBlock + h * kHalf + lane() * kFour;
      Sum settled;
#pragma unroll
      for (int e = 0; e < kFour; ++e) {
        settled.high.v[e] = static_cast<float>(total[h][e]);
        const double rest = total[h][e] - static_cast<double>(settled.high.v[e]);
        settled.low[e] = low_of(settled.high.v[e], static_cast<float>(rest));
      }
      if (aligned && at + kFour <= size)
        store_sum<true>(sum, at, kFour, settled);
      else
        store_sum<false>(sum, at, size - at, settled);
    }
  }
}

template <RowFormat Format>
__global__ void __launch_bounds__(kThreads) read_kernel(int64_t size, cpu::Rows rows, int64_t slot, float* out) {
  const int64_t blocks = (size + kScaleBlock - 1) / kScaleBlock;
  for (int64_t index = warp_of_grid(); index < blocks; index += warps_of_grid()) {
    const Halves row = decode<Format>(rows, slot, index);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t at = index * kScaleBlock + h * kHalf + lane() * kFour;
      if (at + kFour <= size)
        store<true>(out + at, kFour, row.half[h]);
      else
        store<false>(out + at, size - at, row.half[h]);
    }
  }
}

}  // namespace

void cached_step(const cpu::Update& update, const cpu::Rows& rows, const cpu::CachedDirection& direction, double gain,
                 const cpu::Optimizer& optimizer, const Verdict* verdict, const Where& where) {
  const DeviceGuard guard(where.device);
  const bool steps = optimizer.x != nullptr;
  const OptimizerKind kind = optimizer.kind;
  CachedArgs args{direction.kind,
                  true,
                  gain,
                  direction.write,
                  direction.read,
                  direction.random,
                  direction.sum,
                  direction.entering,
                  direction.leaving,
                  direction.sum_scale,
                  direction.acc,
                  direction.acc_out,
                  direction.weight,
                  direction.acc_scale,
                  steps,
                  steps && kHasM[kind],
                  steps && kHasV[kind],
                  steps && kHasVhat[kind]};
  const bool aligned = all_aligned(direction.sum.high, direction.sum.low, direction.acc, direction.acc_out, optimizer.x,
                                   optimizer.x_out, optimizer.m, optimizer.v, optimizer.vhat);
  using Kernel = void (*)(Source, bool, cpu::Rows, CachedArgs, Terms, cpu::Optimizer, const Verdict*);
  constexpr Kernel kKernels[kRowFormats][2] = {{cached_kernel<kRowFloat32, Cursor>, cached_kernel<kRowFloat32, Flat>},
                                               {cached_kernel<kRowBFloat16, Cursor>, cached_kernel<kRowBFloat16, Flat>},
                                               {cached_kernel<kRowInt8, Cursor>, cached_kernel<kRowInt8, Flat>},
                                               {cached_kernel<kRowInt4, Cursor>, cached_kernel<kRowInt4, Flat>}};
  const Source source = source_of(update);
  const Kernel kernel = kKernels[rows.format][source.flat != nullptr];
  // A kernel takes so many terms. More of them (ACED, when hundreds of clients expire at once) take further launches;
  // a mean steps in the last one, a calibrated direction, whose terms follow the step, in the first.
  size_t next = 0;
  do {
    Terms terms{};
    for (; next < direction.terms.size() && terms.count < kMostTerms; ++next)
      terms.term[terms.count++] = direction.terms[next];
    const bool more = next < direction.terms.size();
    CachedArgs now = args;
    if (args.kind == cpu::kMean && more) now.steps = now.has_m = now.has_v = now.has_vhat = false;
    launch("cached step", where, warps(blocks_of(update.size), where.device), kernel, source, aligned, rows, now, terms,
           optimizer, verdict);
    args.takes_update = false;
    args.write = args.read = -1;
    if (args.kind == cpu::kCalibrated) {
      args.kind = cpu::kMean;
      args.steps = args.has_m = args.has_v = args.has_vhat = false;
    }
  } while (next < direction.terms.size());
}

void recompute_sum(int64_t size, const cpu::Rows& rows, const float* weights, int64_t slots, const cpu::RunningSum& sum,
                   int64_t first, int64_t last, const Where& where) {
  if (last <= first) return;
  constexpr decltype(&recompute_kernel<kRowInt8>) kKernels[kRowFormats] = {
      recompute_kernel<kRowFloat32>, recompute_kernel<kRowBFloat16>, recompute_kernel<kRowInt8>,
      recompute_kernel<kRowInt4>};
  const DeviceGuard guard(where.device);
  launch("recompute sum", where, warps((last - first) * kScaleBlocks, where.device), kKernels[rows.format], size,
         all_aligned(sum.high, sum.low), rows, weights, slots, sum, first * kScaleBlocks, last * kScaleBlocks);
}

void read_row(int64_t size, const cpu::Rows& rows, int64_t slot, float* out, const Where& where) {
  constexpr decltype(&read_kernel<kRowInt8>) kKernels[kRowFormats] = {
      read_kernel<kRowFloat32>, read_kernel<kRowBFloat16>, read_kernel<kRowInt8>, read_kernel<kRowInt4>};
  const DeviceGuard guard(where.device);
  launch("read row", where, warps(blocks_of(size) * kScaleBlocks, where.device), kKernels[rows.format], size, rows,
         slot, out);
}

}  // namespace fastagg::cuda
