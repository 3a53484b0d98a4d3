// The kernels of one instruction set and vector width, as a table of functions.
//
// A step over fp32 vectors is one loop, generated for every direction and optimizer (`fused`). If the update, the rows
// or the moments have another type, short stages run one after the other over blocks of 1,024 elements. The blocks stay
// in the L1 cache. No intermediate vector is written to memory (step.cpp).
#pragma once

#include <stdint.h>

#include "../math/combine.h"
#include "../math/moments.h"
#include "../math/optimizers.h"
#include "../math/reduce.h"
#include "../plan.h"
#include "../train/net.h"

namespace fastagg::cpu {

// The direction that a fused loop computes (math/directions.h).
enum FusedDirection : int {
  kAlongSingle = 0,
  kAlongTurned,
  kAlongFlush,
  kAlongBlend,
  kAlongReplace,     // mean, with an old row and a new row
  kAlongEnter,       // mean, without an old row, without a new row, or without both
  kAlongBuffered,    // calibrated, without a step
  kAlongCalibrated,  // calibrated, with a step
  kAlongSum,         // D = sum*sum_scale, where the sum already includes the update
  kAlongs
};

// What a fused loop does with its direction. A number below kGives means the step of the optimizer at this place in
// Optimizers.
constexpr int kGives = Optimizers::kCount;      // out = D
constexpr int kMoves = Optimizers::kCount + 1;  // no output: only the sum and the row are updated
constexpr int kActs = Optimizers::kCount + 2;

constexpr uint32_t kNoLimit = 0x7fffffffu;  // no float has a magnitude with larger bits

// The arguments of a fused loop over n elements. Each pointer is to the first of these elements. The direction
// (math/directions.h) and the optimizer determine which members a loop uses.
struct Run {
  const float* update;
  uint32_t limit = kNoLimit;  // the bits of the largest allowed magnitude of `update` (Update::limit)
  float gain, weight, scale;
  float turn;                      // the factor of m in a turned direction
  const float *acc, *base, *read;  // `read`: the client's old row
  float *write, *sum;              // `write`: the client's new row
  float entering, leaving, dither, sum_scale, acc_scale;
  Hyper hyper;
  float *m, *v, *vhat;
  const float* x;
  float* out;
  int64_t n;
  int64_t ahead;  // how many elements ahead memory is prefetched; 0: not at all
  // Whether stores to `out`, or to `write`, bypass the caches. That pointer must then be aligned to 64 bytes.
  bool stream_out, stream_write;
};

// The arguments of a step on a block with 8-bit moments (math/moments.h). n is a multiple of kScaleBlock. The caller
// pads the block with zeros. `ahead` means the same as in Run, here and below.
struct CodedBlock {
  const float* direction;
  const float* x;
  float* x_out;
  uint32_t *m, *v, *vhat;
  float *units_m, *units_v;
  int64_t n, ahead;
};

// The arguments of a kernel that stores gain*in as a block of a client's row. If `sum` is not null, the kernel also
// does sum += entering*new - leaving*old with decoded rows (`exchanged` in math/directions.h), and then sum +=
// term_weight*term. n is a multiple of kScaleBlock.
struct RowChange {
  const float* in;
  float gain;
  const uint32_t* words;  // this block's random words
  Row write;
  int64_t n, ahead;
  const float* ask;           // a block to prefetch for the next stage, if `ahead` is not 0
  uint32_t limit = kNoLimit;  // as in Run; only for formats with scales
  Row read = {};              // the old row, which may be the written row; null data: there is no old row
  Row term = {};              // a row other than the written row; null data: there is no term
  float entering = 0.0f, leaving = 0.0f, dither = 0.0f, term_weight = 0.0f;
  float* sum = nullptr;
};

// The arguments of `fold`: out = acc + weight[0]*(in[0] - base) + ..., in this order. A null acc or base counts as
// zero. `out` may be acc unless stream_out is set.
constexpr int kFolds = 4;  // the most inputs of a loop, because prefetchers follow few streams of memory
struct Fold {
  int count;  // 1, 2 or 4
  const float* in[kFolds];
  float weight[kFolds];
  const float *base, *acc;
  float* out;
  int64_t n, ahead;
  bool stream_out;  // whether stores bypass the caches; `out` is then aligned to 64 bytes
};

// The arguments of a kernel that combines n elements of rows, each times its weight, into `out` (math/combine.h).
struct Combination {
  const float* const* rows;
  const float* weights;
  int64_t count, cut, n, ahead;
  float* out;
};

// The arguments of `add_pairs`. For each wanted pair i <= k, sums[i*count + k] is increased by the sum of row i times
// row k over n elements. With `apart`, the sum is of the squared differences of the rows. Each row is first multiplied
// by its own weight. Sums are in double.
struct Pairs {
  const float* const* rows;
  const float* weights;
  int64_t count, n;
  bool apart;
  const uint8_t* wanted;  // [count, count]: nonzero where a pair is wanted; null: all pairs are wanted
  double* sums;
  bool wants(int64_t i, int64_t k) const { return i <= k && (wanted == nullptr || wanted[i * count + k] != 0); }
};

// The arguments of `noise`: out += scale*normal numbers, for the 1,024 elements of block number `block`. The blocks at
// `ask` are prefetched for later stages. A pointer in `ask` may be null or invalid.
struct NoiseBlock {
  const ChaChaKey& key;
  int64_t block;
  float scale;
  float* out;
  const float* ask[3];
};

// The kernels for a row of the distillation loss (math/distill.h). `share`: 1/the number of rows in the loss.
template <typename T>
struct RowLoss {
  void (*targets)(const T* logits, T scale, int64_t classes, T* probs, int64_t* label, double* entropy);
  double (*loss)(const T* logits, const T* probs, int64_t label, double entropy, double alpha, double share,
                 int64_t classes, T* gradient);
};

constexpr int kSums = 3;

// Encodes a block into codes and scales. A scale block begins at `in`. `words`: the block's random words.
using Encoder = void (*)(const float* in, int64_t n, const uint32_t* words, uint8_t* codes, float* scales);

struct Kernels {
  const char* isa;
  int lanes;                                      // floats per vector
  void (*fused[kAlongs][kActs])(const Run& run);  // null: this loop does not exist
  // `first` is the number of the block's first scale block. Null if the optimizer's moments are never 8-bit.
  void (*coded[Optimizers::kCount])(const CodedBlock& block, const Hyper& hyper, const RandomKey& key, int64_t first);
  void (*widen_f16)(const uint16_t* in, float* out, int64_t n);
  void (*widen_bf16)(const uint16_t* in, float* out, int64_t n);
  // Limits each element's magnitude (Update::limit). `out` may be `in`.
  void (*limit)(const float* in, uint32_t limit, float* out, int64_t n, int64_t ahead);
  void (*fold)(const Fold& run, int32_t* largest);  // largest[k]: the bits of the largest magnitude of in[k] - base
  void (*random_words)(const RandomKey& key, int64_t block, uint32_t* words, const float* ask);
  void (*noise)(const NoiseBlock& run);
  void (*change[RowFormats::kCount])(const RowChange& change);
  void (*decode[RowFormats::kCount])(Row row, float* out, int64_t n, int64_t ahead);
  // Decodes elements at..at+n-1 of an encoded update. `at` is a multiple of kScaleBlock.
  void (*decode_wire[WireFormats::kCount])(const Wire& wire, int64_t at, float* out, int64_t n, int64_t ahead);
  Encoder encode_wire[WireFormats::kCount];  // null if the format is not a DenseFormat
  Encoder encode_values[ValueCodecs::kCount];
  void (*encode_nearest)(const float* in, int64_t n, float inverse, int8_t* codes);
  uint32_t (*largest)(const float* in, int64_t n);  // returns the bits of the largest magnitude in `in`
  // sum += weight*row
  void (*add_row[RowFormats::kCount])(float* sum, Row row, float weight, int64_t n, int64_t ahead);
  // total += weight*row, with the product in fp32 and the sum in double
  void (*add_exactly[RowFormats::kCount])(double* total, Row row, float weight, int64_t n, int64_t ahead);
  void (*settle)(const double* total, float* sum, int64_t n);
  // Sums over at most one strand (math/reduce.h). `squares` sums update^2. `apart` sums update^2, (x - base)^2 and, if
  // `inner`, (x - base)*update, in this order. n is a multiple of 128. The caller pads with zeros.
  void (*squares)(const float* update, int64_t n, int64_t ahead, double* out);
  // Sums as `squares` does, and copies the update. Each element is loaded once.
  void (*copy_squares)(const float* update, float* copy, int64_t n, int64_t ahead, double* out);
  // Returns the sum of squares of a top-k's elements in the group (math/reduce.h) that starts at `begin`.
  double (*squares_topk[ValueCodecs::kCount])(const Wire& wire, int64_t begin);
  void (*apart)(const float* update, const float* x, const float* base, bool inner, int64_t n, int64_t ahead,
                double* out);
  void (*combine[CombineKinds::kCount])(const Combination& run);
  void (*add_pairs)(const Pairs& run);
  RowLoss<float> distill_f32;
  RowLoss<double> distill_f64;
  // Trains a client's model. `memory` is the network's workspace. The borders of images in the workspace must be zero.
  void (*train)(const train::Net& net, const train::TrainCall& call, float* memory);
};

// kernels() is the table in use, with the widest vectors of its instruction set. streaming_kernels() is the table for
// loops over vectors that do not fit in a core's cache (tuning.h, `width` and `wide_below`). Only the `fused` kernels
// of streaming_kernels() may be used.
const Kernels& kernels();
const Kernels& streaming_kernels();

}  // namespace fastagg::cpu
