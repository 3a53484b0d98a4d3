#define FASTAGG_TABLE baseline
#define FASTAGG_ISA "baseline"
#define FASTAGG_LANES 4
#include "kernels.inl"
