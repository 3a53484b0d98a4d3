// The long loops over fp32 vectors in half of the width: all that `streaming_kernels()` is asked for.
#define FASTAGG_TABLE avx512_256
#define FASTAGG_ISA "avx512"
#define FASTAGG_LANES 8
#define FASTAGG_LOOPS_ONLY
#include "kernels.inl"
