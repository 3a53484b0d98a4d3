// The fused loops with 256-bit vectors, for processors with AVX-512. Only `streaming_kernels()` uses them.
#define FASTAGG_TABLE avx512_256
#define FASTAGG_ISA "avx512"
#define FASTAGG_LANES 8
#define FASTAGG_LOOPS_ONLY
#include "kernels.inl"
