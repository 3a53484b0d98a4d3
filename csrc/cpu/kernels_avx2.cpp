// The kernels for processors with AVX2 (kernels.inl).
#define FASTAGG_TABLE avx2
#define FASTAGG_ISA "avx2"
#define FASTAGG_LANES 8
#include "kernels.inl"
