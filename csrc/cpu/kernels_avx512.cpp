#define FASTAGG_ISA_NAMESPACE avx512
#define FASTAGG_ISA_NAME "avx512"
#include "kernels.inl"
