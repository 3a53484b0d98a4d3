// The block kernels of one instruction set, as a table of plain functions.
//
// Every function works on a piece of at most kBlock elements that stays in the L1 cache; a server step is a short
// sequence of them (see step.cpp), so stages compose freely and no intermediate vector reaches memory.
#pragma once

#include <stdint.h>

#include "../math/optimizer.h"
#include "../math/reduce.h"

namespace fastagg::cpu {

// Pointers are to the block's first element; unused ones are null. x_out may equal x.
struct OptimizerBlock {
  const float* direction;
  const float* x;
  float* x_out;
  float* m;
  float* v;
  float* vhat;
  int64_t n;
};

struct Kernels {
  const char* name;
  void (*widen_f16)(const uint16_t* in, float* out, int64_t n);
  void (*widen_bf16)(const uint16_t* in, float* out, int64_t n);
  // out = weight*in
  void (*scale)(const float* in, float weight, float* out, int64_t n);
  // acc_out = acc + weight*in
  void (*accumulate)(const float* acc, const float* in, float weight, float* acc_out, int64_t n);
  // direction = (acc + weight*in)*scale
  void (*flush)(const float* acc, const float* in, float weight, float scale, float* direction, int64_t n);
  // direction = weight*((base - x) + gain*in)
  void (*blend)(const float* base, const float* x, const float* in, float gain, float weight, float* direction,
                int64_t n);
  // out = in past the caches (in is 16-byte aligned): for outputs that nobody reads soon. The caller fences.
  void (*stream)(const float* in, float* out, int64_t n);
  void (*optimizer[kOptimizerKinds])(const OptimizerBlock& block, const Hyper& hyper);
  // Sum of squares of exactly kBlock elements, in reduce.h's shape.
  double (*sum_squares)(const float* in);
};

// The tables this build holds, best first, and whether this processor can run each.
struct Isa {
  const Kernels* kernels;
  bool supported;
};
int isa_count();
Isa isa(int index);

// The table in use. `select` returns false and changes nothing when the name is unknown or unsupported.
const Kernels& kernels();
bool select(const char* name);

}  // namespace fastagg::cpu
