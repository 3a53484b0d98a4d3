// Element functions are written once and used by every CPU instruction set and by CUDA.
//
// On the host they must have internal linkage and must be inlined: the same header is compiled several
// times with different instruction-set flags, and a shared inline symbol would let the linker keep the
// AVX-512 copy for everybody (an ODR leak that ends in SIGILL on older machines).
#pragma once

#include <stdint.h>

#if defined(__CUDACC__)
#define FASTAGG_FN static __host__ __device__ __forceinline__
#else
#define FASTAGG_FN static inline __attribute__((always_inline))
#endif

// The loop carries no dependence: an output may be the very array an input is (in place), never a shifted one.
#if defined(__clang__)
#define FASTAGG_NO_CARRY _Pragma("clang loop vectorize(assume_safety)")
#else
#define FASTAGG_NO_CARRY _Pragma("GCC ivdep")
#endif

// a*b + c where a*b is exact: one rounding or two give the same bits, so one instruction may do it.
FASTAGG_FN float add_exact_product(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
