// The kernels with AVX2: 8 floats in a vector.
#define FASTAGG_TABLE avx2
#define FASTAGG_ISA "avx2"
#define FASTAGG_LANES 8
#include "kernels.inl"
