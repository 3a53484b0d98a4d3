// The kernels with 128-bit vectors, for every supported processor (kernels.inl).
#define FASTAGG_TABLE baseline
#define FASTAGG_ISA "baseline"
#define FASTAGG_LANES 4
#include "kernels.inl"
