#define FASTAGG_ISA_NAMESPACE avx2
#define FASTAGG_ISA_NAME "avx2"
#include "kernels.inl"
