// Bodies of the block kernels. Included once per instruction set, inside that set's own namespace
// (FASTAGG_ISA_NAMESPACE), by a file compiled with that set's flags. Nothing here may have external linkage except
// the table, and nothing may come from the C++ library: a shared template would be compiled with the wrong flags
// for somebody (see math/portable.h).

#include "../math/distill.h"
#include "../math/half.h"
#include "../math/running_sum.h"
#include "kernels.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define FASTAGG_INLINE __attribute__((always_inline))

namespace fastagg::cpu::FASTAGG_ISA_NAMESPACE {
namespace {

// How far ahead of the arithmetic memory is asked for, in elements. The hardware prefetcher stops at page ends, and
// with five streams a page lasts one block; asking half a block ahead is worth about 10% where memory is the limit
// (bench/README.md says how it was measured). Asking past an array's end is harmless.
constexpr int64_t kAhead = 512;
constexpr int64_t kLine = 16;    // floats in a cache line
constexpr int64_t kStride = 64;  // elements between two rounds of prefetches

FASTAGG_FN void ahead(const void* pointer) { __builtin_prefetch(pointer, 0, 3); }

// body(i) for every i < n, asking for the elements of `streams` ahead of their use.
template <typename Body, typename... Stream>
FASTAGG_FN void sweep(int64_t n, Body body, const Stream*... streams) {
  int64_t i = 0;
  for (; i + kStride <= n; i += kStride) {
    for (int64_t line = 0; line < kStride; line += kLine) (ahead(streams + (i + line + kAhead)), ...);
    FASTAGG_NO_CARRY
    for (int64_t k = i; k < i + kStride; ++k) body(k);
  }
  FASTAGG_NO_CARRY
  for (; i < n; ++i) body(i);
}

void widen_f16_block(const uint16_t* in, float* out, int64_t n) {
  sweep(n, [=](int64_t i) FASTAGG_INLINE { out[i] = widen_f16(in[i]); }, in);
}

void widen_bf16_block(const uint16_t* in, float* out, int64_t n) {
  sweep(n, [=](int64_t i) FASTAGG_INLINE { out[i] = widen_bf16(in[i]); }, in);
}

void scale_block(const float* in, float weight, float* out, int64_t n) {
  sweep(n, [=](int64_t i) FASTAGG_INLINE { out[i] = weight * in[i]; }, in);
}

void accumulate_block(const float* acc, const float* in, float weight, float* acc_out, int64_t n) {
  sweep(n, [=](int64_t i) FASTAGG_INLINE { acc_out[i] = acc[i] + weight * in[i]; }, acc, in);
}

// Based: differences from a base; else the update is one. Fresh: there is no sum yet.
template <bool Based, bool Fresh>
FASTAGG_FN bool fold_of(const float* in, const float* base, float weight, const float* acc, float* acc_out, int64_t n) {
  // The largest magnitude, as an integer: of infinity and NaN the bits are larger than any number's.
  int32_t most = 0;
  const auto body = [=, &most](int64_t i) FASTAGG_INLINE {
    const float difference = Based ? in[i] - base[i] : in[i];
    int32_t bits;
    memcpy(&bits, &difference, sizeof bits);
    bits &= 0x7FFFFFFF;
    most = bits > most ? bits : most;
    acc_out[i] = (Fresh ? 0.0f : acc[i]) + weight * difference;
  };
  if constexpr (Based && Fresh) sweep(n, body, in, base);
  if constexpr (Based && !Fresh) sweep(n, body, in, base, acc);
  if constexpr (!Based && Fresh) sweep(n, body, in);
  if constexpr (!Based && !Fresh) sweep(n, body, in, acc);
  return most < 0x7F800000;
}

bool fold_block(const float* in, const float* base, float weight, const float* acc, float* acc_out, int64_t n) {
  if (base == nullptr)
    return acc == nullptr ? fold_of<false, true>(in, base, weight, acc, acc_out, n)
                          : fold_of<false, false>(in, base, weight, acc, acc_out, n);
  return acc == nullptr ? fold_of<true, true>(in, base, weight, acc, acc_out, n)
                        : fold_of<true, false>(in, base, weight, acc, acc_out, n);
}

void flush_block(const float* acc, const float* in, float weight, float scale, float* direction, int64_t n) {
  sweep(n, [=](int64_t i) FASTAGG_INLINE { direction[i] = (acc[i] + weight * in[i]) * scale; }, acc, in);
}

void blend_block(const float* base, const float* x, const float* in, float gain, float weight, float* direction,
                 int64_t n) {
  sweep(n, [=](int64_t i) FASTAGG_INLINE { direction[i] = weight * ((base[i] - x[i]) + gain * in[i]); }, base, x, in);
}

template <int Kind>
void optimizer_block(const OptimizerBlock& block, const Hyper& hyper) {
  // Locals, not members: the compiler must see that the stores below cannot change the pointers.
  const float* direction = block.direction;
  const float* x = block.x;
  float* x_out = block.x_out;
  float* m = block.m;
  float* v = block.v;
  float* vhat = block.vhat;
  const Hyper h = hyper;
  const auto body = [=](int64_t i) FASTAGG_INLINE {
    float mi = 0.0f, vi = 0.0f, wi = 0.0f;
    if constexpr (kHasM[Kind]) mi = m[i];
    if constexpr (kHasV[Kind]) vi = v[i];
    if constexpr (kHasVhat[Kind]) wi = vhat[i];
    x_out[i] = optimize<Kind>(direction[i], x[i], mi, vi, wi, h);
    if constexpr (kHasM[Kind]) m[i] = mi;
    if constexpr (kHasV[Kind]) v[i] = vi;
    if constexpr (kHasVhat[Kind]) vhat[i] = wi;
  };
  if constexpr (kHasVhat[Kind])
    sweep(block.n, body, direction, x, m, v, vhat);
  else if constexpr (kHasV[Kind])
    sweep(block.n, body, direction, x, m, v);
  else if constexpr (kHasM[Kind])
    sweep(block.n, body, direction, x, m);
  else
    sweep(block.n, body, direction, x);
}

void stream_block(const float* in, float* out, int64_t n) {
#if defined(__SSE2__)
  if (reinterpret_cast<uintptr_t>(out) % 16 == 0) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) _mm_stream_ps(out + i, _mm_loadu_ps(in + i));
    for (; i < n; ++i) out[i] = in[i];
    return;
  }
#endif
  memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
}

// GCC and Clang lower these to whatever the target has; the order of additions is in the source, lane by lane.
#if defined(__AVX512F__)
constexpr int64_t kWidth = 8;
#elif defined(__AVX2__)
constexpr int64_t kWidth = 4;
#else
constexpr int64_t kWidth = 2;
#endif
typedef float Floats __attribute__((vector_size(4 * kWidth), aligned(4)));
typedef double Doubles __attribute__((vector_size(8 * kWidth)));

FASTAGG_FN Floats floats(const float* at) { return *reinterpret_cast<const Floats*>(at); }
FASTAGG_FN Doubles widened(Floats values) {
#if defined(__AVX512F__)
  // GCC makes the conversion below in two halves. The masked form: see widening_product.
  return reinterpret_cast<Doubles>(_mm512_maskz_cvtps_pd(0xff, reinterpret_cast<__m256>(values)));
#else
  return __builtin_convertvector(values, Doubles);
#endif
}

// A product of two widened floats is exact, so one rounding or two give the same bits.
FASTAGG_FN void add_product(Doubles& sum, Doubles a, Doubles b) {
#if defined(__AVX512F__)
  sum = reinterpret_cast<Doubles>(
      _mm512_fmadd_pd(reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(sum)));
#else
  sum += a * b;
#endif
}

// reduce.h: lanes four by four, then the quads in halves.
FASTAGG_FN double total_of_lanes(const double* lanes) {
  double quads[kQuads];
  for (int64_t q = 0; q < kQuads; ++q)
    quads[q] = fold_quad(lanes[4 * q], lanes[4 * q + 1], lanes[4 * q + 2], lanes[4 * q + 3]);
  for (int64_t half = kQuads / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) quads[i] += quads[i + half];
  return quads[0];
}

// add(i, sums) adds the products of elements i..i+kWidth-1 to each of the sums, for every i of a whole block; the sums
// are folded in reduce.h's shape. `streams` are what is read, and will be read in the next block.
template <int Sums, typename Add, typename... Stream>
FASTAGG_FN void sums_of(double* out, Add add, const Stream*... streams) {
  alignas(64) double lanes[Sums][kLanes];
  // As many lanes at a time as their sums fit in registers; the sums themselves are the same.
#if defined(__AVX512F__)
  constexpr int64_t kSweep = Sums == 1 ? 128 : 64;
#else
  constexpr int64_t kSweep = Sums == 1 ? 32 : 16;
#endif
  for (int64_t first = 0; first < kLanes; first += kSweep) {
    Doubles sums[kSweep / kWidth][Sums] = {};
    for (int64_t k = first; k < kBlock; k += kLanes) {
      for (int64_t line = 0; line < kSweep; line += kLine) (ahead(streams + (k + kAhead + line)), ...);
#pragma GCC unroll 16
      for (int64_t l = 0; l < kSweep / kWidth; ++l) add(k + l * kWidth, sums[l]);
    }
    for (int64_t l = 0; l < kSweep / kWidth; ++l)
      for (int64_t s = 0; s < Sums; ++s) memcpy(lanes[s] + first + l * kWidth, &sums[l][s], sizeof(Doubles));
  }
  for (int64_t s = 0; s < Sums; ++s) out[s] = total_of_lanes(lanes[s]);
}

double square_block(const float* values) {
  double sum;
  const auto add = [=](int64_t i, Doubles(&sums)[1]) FASTAGG_INLINE {
    const Doubles v = widened(floats(values + i));
    add_product(sums[0], v, v);
  };
  sums_of<1>(&sum, add, values);
  return sum;
}

template <bool Inner>
FASTAGG_FN void apart(const float* x, const float* base, const float* values, double* out) {
  constexpr int kSums = Inner ? 3 : 2;
  const auto add = [=](int64_t i, Doubles(&sums)[kSums]) FASTAGG_INLINE {
    const Doubles moved = widened(floats(x + i) - floats(base + i)), v = widened(floats(values + i));
    add_product(sums[0], moved, moved);
    add_product(sums[1], v, v);
    if constexpr (Inner) add_product(sums[2], moved, v);
  };
  sums_of<kSums>(out, add, x, base, values);
}

void apart_block(const float* x, const float* base, const float* values, bool inner, double* out) {
  inner ? apart<true>(x, base, values, out) : apart<false>(x, base, values, out);
}

#include "rows.inl"
// After the rows, whose random words it shares.
#include "moments.inl"
// After the blocks, whose helpers it shares.
#include "distill.inl"

}  // namespace

extern const Kernels table;
const Kernels table = {
    FASTAGG_ISA_NAME,
    widen_f16_block,
    widen_bf16_block,
    scale_block,
    accumulate_block,
    fold_block,
    flush_block,
    blend_block,
    stream_block,
    {optimizer_block<kSgd>, optimizer_block<kMomentum>, optimizer_block<kAdam>, optimizer_block<kAmsgrad>,
     optimizer_block<kYogi>, optimizer_block<kAdagrad>, optimizer_block<kLookahead>},
    {nullptr, coded_block<kMomentum>, coded_block<kAdam>, coded_block<kAmsgrad>, coded_block<kYogi>,
     coded_block<kAdagrad>, coded_block<kLookahead>},
    random_words_block,
    {encode_float32, encode_bf16, encode_int8, encode_int4},
    {decode_float32, decode_bf16, decode_int8, decode_int4},
    exchange_block,
    {nullptr, nullptr, replace_block<kRowInt8>, replace_block<kRowInt4>},
    add_exactly_block,
    settle_block,
    combine_block,
    sketch_block,
    square_block,
    apart_block,
    {soft_targets_row<float>, distill_row<float>},
    {soft_targets_row<double>, distill_row<double>},
};

}  // namespace fastagg::cpu::FASTAGG_ISA_NAMESPACE
