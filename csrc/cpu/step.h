// A server step on the CPU: direction -> optimizer, block by block, in one pass over memory.
//
// Bytes per parameter (fp32): buffer 12, FedBuff flush 16, FADAS flush 40, AMSGrad on a given direction 36, apply 12.
#pragma once

#include <cstdint>
#include <vector>

#include "../math/optimizer.h"
#include "../math/philox.h"

namespace fastagg::cpu {

enum Dtype : int { kFloat32 = 0, kFloat16, kBFloat16 };

// An update as it arrived: consecutive pieces of the flat vector, each contiguous, read where they lie.
struct Piece {
  const void* data;
  int64_t begin;  // position in the flat vector
  int64_t size;
  Dtype dtype;
};

struct Update {
  std::vector<Piece> pieces;
  int64_t size = 0;
  void add(const void* data, int64_t count, Dtype dtype);
};

enum DirectionKind : int {
  kSingle = 0,  // D = (gain*weight)*update
  kFlush,       // D = (acc + (gain*weight)*update)*scale
  kBlend,       // D = weight*((base - x) + gain*update)
};

struct Direction {
  DirectionKind kind;
  const float* acc;   // kFlush
  const float* base;  // kBlend
  float gain;         // on the update alone (clipping)
  float weight;       // on the client's whole contribution (staleness, samples)
  float scale;        // 1/M or 1/sum of weights
};

// Moments in 8 bits: a byte for each element, padded to whole scale blocks, and their units (math/moments.h).
struct CodedMoments {
  uint8_t* m;
  uint8_t* v;
  uint8_t* vhat;
  float* units_m;
  float* units_v;
  RandomKey random;
};

struct Optimizer {
  OptimizerKind kind;
  Hyper hyper;
  float* m;
  float* v;
  float* vhat;
  const float* x;
  float* x_out;        // may be x
  CodedMoments coded;  // units_m null: the moments are the fp32 ones
};

void step(const Update& update, const Direction& direction, const Optimizer& optimizer);

// acc_out = acc + weight*update; acc null starts a new sum, so that nobody needs to clear it.
void accumulate(const Update& update, const float* acc, float weight, float* acc_out);

// Elements first..first+count-1 as they are, `item` bytes each (all pieces are of one type), put together.
void copy(const Update& update, int64_t first, int64_t count, int64_t item, void* out);

// out = update, widened to fp32 and put together.
void gather(const Update& update, float* out);

}  // namespace fastagg::cpu
