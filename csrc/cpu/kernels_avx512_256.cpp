// The fused loops with 256-bit vectors on a processor with AVX-512. `streaming_kernels()` uses no other kernels.
#define FASTAGG_TABLE avx512_256
#define FASTAGG_ISA "avx512"
#define FASTAGG_LANES 8
#define FASTAGG_LOOPS_ONLY
#include "kernels.inl"
