// The kernels with the instructions that every supported processor has: 4 floats in a vector.
#define FASTAGG_TABLE baseline
#define FASTAGG_ISA "baseline"
#define FASTAGG_LANES 4
#include "kernels.inl"
