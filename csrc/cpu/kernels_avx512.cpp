// The kernels with 512-bit vectors, for processors with AVX-512 (kernels.inl).
#define FASTAGG_TABLE avx512
#define FASTAGG_ISA "avx512"
#define FASTAGG_LANES 16
#include "kernels.inl"
