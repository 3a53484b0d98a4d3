// The block kernels of one instruction set, as a table of plain functions.
//
// Every function works on a piece of at most kBlock elements that stays in the L1 cache; a server step is a short
// sequence of them (see step.cpp), so stages compose freely and no intermediate vector reaches memory.
#pragma once

#include <stdint.h>

#include "../math/moments.h"
#include "../math/optimizer.h"
#include "../math/philox.h"
#include "../math/quantise.h"
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

// The same with moments in 8 bits (math/moments.h); n is a multiple of kScaleBlock (the caller pads with zeros).
struct CodedBlock {
  const float* direction;
  const float* x;
  float* x_out;
  uint32_t* m;
  uint32_t* v;
  uint32_t* vhat;
  float* units_m;
  float* units_v;
  int64_t n;
};

// A block of one stored row. `data` is typed by the format; scales are null for fp32 and bf16.
struct RowBlock {
  void* data;
  float* scales;
};

// A row's block becomes `in`; with it (high, low) += entering*new - leaving*old, and then += term_weight*term if `term`
// is not null; direction = sum_scale*high.
struct RowChange {
  const float* in;
  const uint32_t* words;
  RowBlock read, write;  // may be the same
  RowBlock term;         // another than what is written
  float entering, leaving, term_weight;
  float* high;
  int8_t* low;
  float* direction;
  float sum_scale;
  int64_t n;
  const float* ask;
};

// A row of the distillation loss (distill.h).
template <typename T>
struct RowLoss {
  void (*targets)(const T* logits, T scale, int64_t classes, T* probs, int64_t* label, double* entropy);
  double (*loss)(const T* logits, const T* probs, int64_t label, double entropy, double alpha, double share,
                 int64_t classes, T* gradient);
};

struct Kernels {
  const char* name;
  void (*widen_f16)(const uint16_t* in, float* out, int64_t n);
  void (*widen_bf16)(const uint16_t* in, float* out, int64_t n);
  // out = weight*in
  void (*scale)(const float* in, float weight, float* out, int64_t n);
  // acc_out = acc + weight*in
  void (*accumulate)(const float* acc, const float* in, float weight, float* acc_out, int64_t n);
  // acc_out = acc + weight*(in - base); whether every in - base is finite. acc null: of nothing; base null: of in
  bool (*fold)(const float* in, const float* base, float weight, const float* acc, float* acc_out, int64_t n);
  // direction = (acc + weight*in)*scale
  void (*flush)(const float* acc, const float* in, float weight, float scale, float* direction, int64_t n);
  // direction = weight*((base - x) + gain*in)
  void (*blend)(const float* base, const float* x, const float* in, float gain, float weight, float* direction,
                int64_t n);
  // out = in past the caches: for outputs that nobody reads soon. The caller fences.
  void (*stream)(const float* in, float* out, int64_t n);
  void (*optimizer[kOptimizerKinds])(const OptimizerBlock& block, const Hyper& hyper);
  // `first`: the number of the first scale block. Null for SGD, which has no moments.
  void (*coded[kOptimizerKinds])(const CodedBlock& block, const Hyper& hyper, const RandomKey& key, int64_t first);
  // The random words of a whole block, 4 times 128 of them (rows.inl says which element has which). This stage only
  // computes, so it asks meanwhile for a block that a later one reads (`ask`, any address).
  void (*random_words)(const RandomKey& key, int64_t block, uint32_t* words, const float* ask);
  // Rows, n a multiple of kScaleBlock (the caller pads with zeros).
  void (*encode[kRowFormats])(const float* in, const uint32_t* words, RowBlock row, int64_t n, const float* ask);
  void (*decode[kRowFormats])(RowBlock row, float* out, int64_t n);
  // (high, low) += entering_weight*entering - leaving_weight*leaving; direction = scale*high, where it is wanted
  void (*exchange)(float* high, int8_t* low, const float* entering, float entering_weight, const float* leaving,
                   float leaving_weight, float* direction, float scale, int64_t n);
  // encode, decode and exchange in one, in a pass whose codes never leave registers; null for fp32 and bf16.
  void (*replace[kRowFormats])(const RowChange& change);
  // total += weight*in, in double; and back to (high, low)
  void (*add_exactly)(double* total, const float* in, float weight, int64_t n);
  void (*settle)(const double* total, float* high, int8_t* low, int64_t n);
  // out = a*a_scale + b*b_scale
  void (*combine)(const float* a, float a_scale, const float* b, float b_scale, float* out, int64_t n);
  // out += in, element i with the sign of bit i of `signs`
  void (*sketch)(const float* in, const uint32_t* signs, float* out, int64_t n);
  // Sums over exactly kBlock elements, in double and in reduce.h's shape: of values^2; of (x - base)^2, values^2 and,
  // if `inner`, (x - base)*values.
  double (*square)(const float* values);
  void (*apart)(const float* x, const float* base, const float* values, bool inner, double* out);
  RowLoss<float> distill_f32;
  RowLoss<double> distill_f64;
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
