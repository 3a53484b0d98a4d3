#define FASTAGG_ISA_NAMESPACE baseline
#define FASTAGG_ISA_NAME "baseline"
#include "kernels.inl"
