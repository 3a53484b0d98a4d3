// The kernels of one table. Each kernels_*.cpp includes this file once, and is compiled with the flags of an
// instruction set. The kernels_*.cpp defines the vector width (FASTAGG_LANES floats), the table's namespace
// (FASTAGG_TABLE) and the name of the instruction set (FASTAGG_ISA). Only the table may have external linkage. The
// kernels must not use the C++ library, or the linker could keep one table's copy of a template for all
// (math/portable.h).

#include <cfloat>

#include "../math/distill.h"
#include "../math/exponential.h"
#include "../math/half.h"
#include "../math/noise.h"
#include "kernels.h"
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define FASTAGG_INLINE __attribute__((always_inline))

namespace fastagg::cpu::FASTAGG_TABLE {
namespace {

// The order matters, because each file uses the files before it.
// clang-format off
#include "simd.h"
#include "fused.inl"
#if !defined(FASTAGG_LOOPS_ONLY)
#include "fold.inl"
#include "rows.inl"
#include "wire.inl"
#include "moments.inl"
#include "noise.inl"
#include "sums.inl"
#include "combine.inl"
#include "distill.inl"
#include "../train/train.inl"
#endif
// clang-format on

#if !defined(FASTAGG_LOOPS_ONLY)

void widen_f16_block(const uint16_t* in, float* out, int64_t n) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) out[i] = widen_f16(in[i]);
}

void widen_bf16_block(const uint16_t* in, float* out, int64_t n) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) out[i] = widen_bf16(in[i]);
}

template <typename Opt>
constexpr auto coded_of() -> void (*)(const CodedBlock&, const Hyper&, const RandomKey&, int64_t) {
  if constexpr (!Opt::kPlain)
    return coded_block<Opt>;
  else
    return nullptr;
}

template <typename... Each>
constexpr void fill_coded(Kernels& to, List<Each...>) {
  int place = 0;
  ((to.coded[place++] = coded_of<Each>()), ...);
}

template <typename... Each>
constexpr void fill_rows(Kernels& to, List<Each...>) {
  int place = 0;
  ((to.change[place] = change_block<Each>, to.decode[place] = decode_block<Each>,
    to.add_row[place] = add_row_block<Each>, to.add_exactly[place++] = add_exactly_block<Each>),
   ...);
}

template <typename... Each>
constexpr void fill_formats(Kernels& to, List<Each...>) {
  int place = 0;
  ((to.decode_wire[place] = decode_wire_block<Each>, to.encode_wire[place++] = encoder_of(Each{})), ...);
}

template <typename... Each>
constexpr void fill_values(Kernels& to, List<Each...>) {
  int place = 0;
  ((to.encode_values[place] = encode_block<Each>, to.squares_topk[place++] = squares_topk<Each>), ...);
}
#endif

// Sets a direction's loops: one for each optimizer, and one that only writes D. A turned direction has no loop (null)
// for an optimizer without the moment m.
template <typename Towards, typename... Each>
constexpr void fill_steps(void (*(&to)[kActs])(const Run&), List<Each...>) {
  int act = 0;
  ((to[act++] = Each::kM || !__is_same(Towards, TurnedLoop) ? fused<Towards, Each> : nullptr), ...);
  to[kGives] = fused<Towards, DirectionOutput>;
}

constexpr Kernels made() {
  Kernels to{};
  to.isa = FASTAGG_ISA;
  to.lanes = FASTAGG_LANES;
  fill_steps<SingleLoop>(to.fused[kAlongSingle], Optimizers{});
  fill_steps<TurnedLoop>(to.fused[kAlongTurned], Optimizers{});
  fill_steps<FlushLoop>(to.fused[kAlongFlush], Optimizers{});
  fill_steps<BlendLoop>(to.fused[kAlongBlend], Optimizers{});
  fill_steps<MeanLoop<true>>(to.fused[kAlongReplace], Optimizers{});
  fill_steps<MeanLoop<false>>(to.fused[kAlongEnter], Optimizers{});
  fill_steps<CalibratedLoop<true>>(to.fused[kAlongCalibrated], Optimizers{});
  fill_steps<SumLoop>(to.fused[kAlongSum], Optimizers{});
  to.fused[kAlongBuffered][kGives] = fused<CalibratedLoop<false>, DirectionOutput>;
  to.fused[kAlongReplace][kMoves] = fused<MeanLoop<true>, SumMove>;
  to.fused[kAlongEnter][kMoves] = fused<MeanLoop<false>, SumMove>;
#if !defined(FASTAGG_LOOPS_ONLY)
  fill_coded(to, Optimizers{});
  fill_rows(to, RowFormats{});
  fill_formats(to, WireFormats{});
  fill_values(to, ValueCodecs{});
  to.encode_nearest = encode_nearest_block;
  to.largest = largest_block;
  to.widen_f16 = widen_f16_block;
  to.widen_bf16 = widen_bf16_block;
  to.limit = limit_block;
  to.fold = fold_run;
  to.random_words = random_words_block;
  to.noise = noise_block;
  to.settle = settle_block;
  to.squares = squares_strand;
  to.copy_squares = copy_squares_strand;
  to.apart = apart_strand;
  to.combine[place_in<Mean>(CombineKinds{})] = combine_mean;
  to.combine[place_in<TrimmedMean>(CombineKinds{})] = combine_trimmed;
  to.combine[place_in<MeanAroundMedian>(CombineKinds{})] = combine_around;
  to.add_pairs = add_pairs;
  to.distill_f32 = {soft_targets_row<float>, distill_row<float>};
  to.train = train_client;
  to.distill_f64 = {soft_targets_row<double>, distill_row<double>};
#endif
  return to;
}

}  // namespace

extern const Kernels table;
const Kernels table = made();

}  // namespace fastagg::cpu::FASTAGG_TABLE
