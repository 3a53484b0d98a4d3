// The kernels of one instruction set and vector width, as a table of functions.
//
// A step over fp32 vectors is one loop, generated for every direction and optimizer (`fused`). If the update, the
// rows or the moments have another type, short stages run one after the other over blocks of 1,024 elements, which stay
// in the L1 cache. No intermediate vector is written to memory (step.cpp).
#pragma once

#include <stdint.h>

#include "../math/moments.h"
#include "../math/reduce.h"
#include "../plan.h"

namespace fastagg::cpu {

// What a fused loop forms its direction from.
enum Along : int {
  kAlongSingle = 0,
  kAlongFlush,
  kAlongBlend,
  kAlongReplace,     // mean: an old row and a new one
  kAlongEnter,       // mean: where one of them is missing
  kAlongBuffered,    // calibrated, without a step
  kAlongCalibrated,  // calibrated, with a step
  kAlongSum,         // D = sum*sum_scale: the sum has moved already
  kAlongs
};

// What it does with the direction: step with an optimizer (its place in the list), or one of these.
constexpr int kGives = Optimizers::kCount;      // out = D
constexpr int kMoves = Optimizers::kCount + 1;  // nothing: the sum and the row have moved
constexpr int kActs = Optimizers::kCount + 2;

// A run of elements; pointers are to its first one. Which are used, math/directions.h and the optimizer say.
struct Run {
  const float* update;
  float gain, weight, scale;
  const float *acc, *base, *read;
  float *write, *sum;
  float entering, leaving, dither, sum_scale, acc_scale;
  Hyper hyper;
  float *m, *v, *vhat;
  const float* x;
  float* out;
  int64_t n;
  int64_t ahead;                  // elements ahead that memory is asked for; 0: never
  bool stream_out, stream_write;  // past the caches; aligned to 64 bytes
};

// A block with moments in 8 bits (math/moments.h); n is a multiple of kScaleBlock (the caller pads with zeros).
struct CodedBlock {
  const float* direction;
  const float* x;
  float* x_out;
  uint32_t *m, *v, *vhat;
  float *units_m, *units_v;
  int64_t n, ahead;
};

// A row's block becomes gain*in; with a sum, sum += entering*new - leaving*old, and then += term_weight*term if there
// is a term. n is a multiple of kScaleBlock.
struct RowChange {
  const float* in;
  float gain;
  const uint32_t* words;  // random ones, of this block
  Row read, write;        // may be the same; read may be missing
  Row term;               // another than what is written
  float entering, leaving, dither, term_weight;
  float* sum;
  int64_t n, ahead;
  const float* ask;  // what the next stage reads in a block from now
};

// out = acc + weight*(in - base). acc null: of nothing; base null: of in. `out` may be acc, not if it is streamed.
struct Fold {
  const float *in, *base, *acc;
  float* out;
  float weight;
  int64_t n, ahead;
  bool stream_out;  // past the caches; aligned to 64 bytes
};

// A row of the distillation loss (distill.h).
template <typename T>
struct RowLoss {
  void (*targets)(const T* logits, T scale, int64_t classes, T* probs, int64_t* label, double* entropy);
  double (*loss)(const T* logits, const T* probs, int64_t label, double entropy, double alpha, double share,
                 int64_t classes, T* gradient);
};

constexpr int kSums = 3;

struct Kernels {
  const char* isa;
  int lanes;                                      // floats in a vector
  void (*fused[kAlongs][kActs])(const Run& run);  // null where the two do not go together
  // `first`: the number of the first scale block in the whole vector. Null for SGD, which has no moments.
  void (*coded[Optimizers::kCount])(const CodedBlock& block, const Hyper& hyper, const RandomKey& key, int64_t first);
  void (*widen_f16)(const uint16_t* in, float* out, int64_t n);
  void (*widen_bf16)(const uint16_t* in, float* out, int64_t n);
  int32_t (*fold)(const Fold& run);  // the bits of the largest magnitude of in - base
  // The random words of a whole block, 4 times 128 of them (rows.inl says which element has which). This stage only
  // computes, so it asks meanwhile for a block that a later one reads (`ask`, any address; null: it does not).
  void (*random_words)(const RandomKey& key, int64_t block, uint32_t* words, const float* ask);
  void (*change[RowFormats::kCount])(const RowChange& change);
  void (*decode[RowFormats::kCount])(Row row, float* out, int64_t n, int64_t ahead);
  // sum += weight*row
  void (*add_row[RowFormats::kCount])(float* sum, Row row, float weight, int64_t n, int64_t ahead);
  // total += weight*row, in double, and back
  void (*add_exactly[RowFormats::kCount])(double* total, Row row, float weight, int64_t n, int64_t ahead);
  void (*settle)(const double* total, float* sum, int64_t n);
  // Adds a block, with random signs, to the buckets from a random place on, of k and a block's length more.
  void (*sketch)(const float* in, const RandomKey& key, int64_t block, int64_t k, float* buckets, int64_t n);
  // Sums over at most a strand (math/reduce.h), n a multiple of 128 (the caller pads with zeros): of update^2; of
  // (x - base)^2 and, if `inner`, of (x - base)*update.
  void (*squares)(const float* update, int64_t n, int64_t ahead, double* out);
  void (*apart)(const float* update, const float* x, const float* base, bool inner, int64_t n, int64_t ahead,
                double* out);
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

// The table in use, with the widest vectors that its instruction set has, and the one for loops over vectors that do
// not fit the caches (tuning.h, `width`), which may have `fused` alone. `select` returns false and changes nothing when
// the instruction set is unknown or unsupported.
const Kernels& kernels();
const Kernels& streaming_kernels();
bool select(const char* name);

}  // namespace fastagg::cpu
