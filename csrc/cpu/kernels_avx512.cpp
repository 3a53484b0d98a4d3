// The kernels with AVX-512: 16 floats in a vector.
#define FASTAGG_TABLE avx512
#define FASTAGG_ISA "avx512"
#define FASTAGG_LANES 16
#include "kernels.inl"
