#define FASTAGG_TABLE avx512
#define FASTAGG_ISA "avx512"
#define FASTAGG_LANES 16
#include "kernels.inl"
