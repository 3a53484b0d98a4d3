// Tools for element functions, which compute one element of a result, or one vector of elements. An element function is
// written once and compiled for every CPU instruction set and for CUDA.
//
// On the host, element functions must have internal linkage and must be inlined, because the same header is compiled
// several times with different instruction-set flags. If the copies shared a symbol, the linker could keep the AVX-512
// copy for all callers. On older processors the program would then end with SIGILL.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define FASTAGG_FN static __host__ __device__ __forceinline__
#else
#define FASTAGG_FN static inline __attribute__((always_inline))
#endif

// Tells the compiler that the iterations of the next loop do not depend on each other. In the loop, an output may be
// the same array as an input, but may not overlap an input in another way.
#if defined(__clang__)
#define FASTAGG_NO_CARRY _Pragma("clang loop vectorize(assume_safety)")
#else
#define FASTAGG_NO_CARRY _Pragma("GCC ivdep")
#endif

// Unrolls the next loop completely, so that its arrays stay in registers. The loop's length must be a constant <= 16.
#if defined(__clang__)
#define FASTAGG_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FASTAGG_UNROLL _Pragma("GCC unroll 16")
#endif

namespace fastagg {

FASTAGG_FN float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

FASTAGG_FN uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Returns a*b + c with one rounding. A GPU has an instruction for this. On the host, the sum in double is rounded to
// odd. So the following rounding to float accounts for the lost bits (Boldo and Melquiond 2008).
FASTAGG_FN float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  const double product = static_cast<double>(a) * static_cast<double>(b);  // this product is exact
  double sum = product + static_cast<double>(c);
  const double part = sum - product;
  const double lost = (product - (sum - part)) + (static_cast<double>(c) - part);
  uint64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  if ((lost > 0.0 || lost < 0.0) && bits % 2 == 0) bits += (lost > 0.0) == (sum > 0.0) ? 1 : UINT64_MAX;
  memcpy(&sum, &bits, sizeof bits);
  return static_cast<float>(sum);
#endif
}

// Element functions take their operations from a template argument, usually called L. Scalar has the operations on a
// single element, which define the results. CUDA's threads use Scalar. cpu/simd.h has the same operations on vectors.
struct Scalar {
  typedef float F;
  typedef uint32_t U;
  typedef int32_t I;

  FASTAGG_FN F root(F value) { return sqrtf(value); }
  FASTAGG_FN F larger(F a, F b) { return a > b ? a : b; }
  FASTAGG_FN F smaller(F a, F b) { return a < b ? a : b; }
  FASTAGG_FN F sign(F value) { return value > 0.0f ? 1.0f : (value < 0.0f ? -1.0f : 0.0f); }
  FASTAGG_FN U bits(F value) { return bits_of(value); }
  FASTAGG_FN F from_bits(U bits) { return float_from_bits(bits); }
  FASTAGG_FN U least(U a, uint32_t b) { return a < b ? a : b; }
  FASTAGG_FN F number(I whole) { return static_cast<F>(whole); }
  FASTAGG_FN I whole(U bits) { return static_cast<I>(bits); }
  FASTAGG_FN U word(I whole) { return static_cast<U>(whole); }
  FASTAGG_FN F multiply_add(F a, F b, F c) { return fused_multiply_add(a, b, c); }
};

}  // namespace fastagg
