// The fused loops for long fp32 vectors, with half the vector width. `streaming_kernels()` needs no other kernels.
#define FASTAGG_TABLE avx512_256
#define FASTAGG_ISA "avx512"
#define FASTAGG_LANES 8
#define FASTAGG_LOOPS_ONLY
#include "kernels.inl"
