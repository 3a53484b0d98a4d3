// The structs that describe a step to the kernels for the CPU and for CUDA. The engine fills them. The bindings also
// build them from Python's keyword arguments, and check that no field is missing.
//
// Addresses point to fp32 vectors in the memory of the device that runs the step, unless a type says otherwise.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "math/chacha.h"
#include "math/combine.h"
#include "math/directions.h"
#include "math/hyper.h"
#include "math/philox.h"
#include "math/rows.h"
#include "math/wire.h"

namespace fastagg {

enum Dtype : int { kFloat32 = 0, kFloat16, kBFloat16, kDtypes };
// The types of a whole encoded update. For kEncoded, Piece::data points to a Wire. For kDeviceEncoded, Piece::data
// points to a DeviceWire, which lies in host memory and has addresses on the device.
constexpr Dtype kEncoded = static_cast<Dtype>(8), kDeviceEncoded = static_cast<Dtype>(9);
struct DeviceWire : Wire {
  const float* numbers = nullptr;  // the decoded numbers; null if they have been released
};

// A contiguous part of an update, which kernels read where the caller stores it. An update's pieces follow each other
// without gaps in the flat vector, which contains all parameters of the model.
struct Piece {
  const void* data;
  int64_t begin;  // position in the flat vector
  int64_t size;
  Dtype dtype;
};

// The elements of an update. If `limit` is finite, the update's norm has been computed, but the caller may still change
// the elements. Kernels then limit each element's magnitude to `limit` while they read the element, and give a NaN the
// magnitude `limit`. The magnitude of an unchanged element is at most `limit`.
struct Update {
  std::vector<Piece> pieces;
  int64_t size = 0;
  float limit = HUGE_VALF;

  bool is_limited() const { return limit < HUGE_VALF; }

  void add(const void* data, int64_t count, Dtype dtype) {
    if (count > 0) pieces.push_back({data, size, count, dtype});
    size += count;
  }
};

// One client's row. The format gives the type of `data`. `scales` is null if the format has no scales. If `data` is
// null, there is no row.
struct Row {
  void* data = nullptr;
  float* scales = nullptr;
};

struct Term {
  Row row;
  float weight;
};

// The rows of all clients. Slot s begins at data + s*row_bytes(), and its scales at scales + s*row_scales().
struct Rows {
  int format = kPlainRows;
  int64_t size = 0;  // elements in a row
  int64_t slots = 0;
  void* data = nullptr;
  float* scales = nullptr;

  int64_t row_bytes() const { return padded(size) * format_facts(format).bits / 8; }
  int64_t row_scales() const { return format_facts(format).scaled ? padded(size) / kScaleBlock : 0; }
  Row row(int64_t slot) const {
    if (slot < 0) return {};
    return {static_cast<char*>(data) + slot * row_bytes(), scales == nullptr ? nullptr : scales + slot * row_scales()};
  }

  // The row at `place` outside of the slots, as a client sends it: data, directly followed by scales.
  Row packed_at(void* place) const {
    if (place == nullptr || row_scales() == 0) return {place, nullptr};
    return {place, reinterpret_cast<float*>(static_cast<char*>(place) + row_bytes())};
  }
};

// A part of a new summation of all clients' rows: the rows in slots first_slot..last_slot-1 are added to one block of
// 1,024 elements. `shadow` is the block's sum so far, with a double for each element.
struct RowJob {
  int64_t block, first_slot, last_slot;
  double* shadow;
  int64_t shift = 0;   // weights[s - shift] is the weight of slot s; 0 on the CPU
  bool fresh = false;  // whether the sum starts from zeros, and `shadow` is not read
};

// An update of a round that is not summed yet, in the form in which the client sent the update. `by` is its factor.
struct WeightedUpdate {
  const Update* update;
  float by;
};

// A rule that combines a round's updates in another way than by a sum, such as a trimmed mean.
class Runner;
class Combiner {
 public:
  virtual ~Combiner() = default;
  // Writes each update's factor for the combination to `weights`. May call Runner::pair_sums. Returns the weight that
  // the rule gives each update, without the update's own factor. Returns no weights if the rule combines elements one
  // by one. May throw Refusal.
  virtual std::vector<double> weigh(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner,
                                    float* weights) const = 0;
  virtual CombineSetting how(int64_t count) const = 0;
};

// Working memory, in which each thread has a block of every update of the round (cpu/combine.h).
class Desks;

// The updates of a round: their sum so far, and `held`, which `acc` does not include. A calibrated direction that does
// not step writes the new sum to `out`, which may equal `acc`.
struct Buffer {
  const float* acc = nullptr;  // null: no sum so far
  float* out = nullptr;
  float scale = 1.0f;  // the factor that turns the sum into a mean: 1/M or 1/sum of weights
  const std::vector<WeightedUpdate>* held = nullptr;
  const Combiner* combine = nullptr;  // null: the updates in `held` are added up
  Desks* desks = nullptr;             // memory for `combine`
};

// Replaces the client's row at `read` by a new row at `write`, which may be the same place. `key` is for the random
// rounding of the new row. The step in the key is the arrival's number, from which the sum's dither is computed too.
struct Exchange {
  int format = kPlainRows;
  Row read, write;
  RandomKey key{};
  Row coded{};  // the new row, if the update was sent in the rows' format; the update is then not read
};

// The sum over clients' rows. Each term adds weight*row to the sum. With kMean the terms are added before the direction
// is computed, with kCalibrated afterwards (math/directions.h).
struct Sum {
  float* values = nullptr;
  float entering = 1.0f, leaving = 1.0f;
  float scale = 1.0f;
  std::vector<Term> terms;
};

// Noise that a step adds to its direction (math/noise.h): `scale` times n. n is a vector of normal numbers with
// standard deviation `deviation`. With past noise, n <- n - sum of omega*past, and then each past <- theta*past + n.
constexpr int kMostPast = 8;
struct PastNoise {
  float* values;
  float omega, theta;
};
struct Noise {
  ChaChaKey key{};
  float deviation = 0.0f;  // 0: no noise
  float scale = 1.0f;
  int count = 0;
  PastNoise past[kMostPast]{};
};

// The factors of one tensor in D = (gain*weight)*u + along*m (math/directions.h). `end` is one past the place of the
// tensor's last element in the flat vector.
struct Turn {
  int64_t end;
  float weight, along;  // `along` = 0: m is not added
};

// The direction that a step computes. math/directions.h defines each kind, with the fields that the kind uses.
struct Direction {
  DirectionKind kind = kSingle;
  double gain = 1.0;                         // the factor of the update only (clipping)
  double weight = 1.0;                       // the factor of the whole contribution (staleness, samples)
  const std::vector<Turn>* turns = nullptr;  // for kSingle: factors of all tensors instead of `weight`
  const float* base = nullptr;               // for kBlend: the model that the client trained from
  Buffer buffer;                             // for kFlush, kCalibrated
  Exchange row;                              // for kMean, kCalibrated
  Sum sum;
  Noise noise;
};

// The optimizer's moments: fp32, or in 8 bits if `units_m` is not null. Moments in 8 bits have a byte for each element,
// padded to whole scale blocks, and a unit for each block (math/moments.h). `key` is for their random rounding.
struct Moments {
  float *m = nullptr, *v = nullptr, *vhat = nullptr;
  uint8_t *coded_m = nullptr, *coded_v = nullptr, *coded_vhat = nullptr;
  float *units_m = nullptr, *units_v = nullptr;
  RandomKey key{};

  bool coded() const { return units_m != nullptr; }
};

// A model in bf16, only on the CPU. Each block is computed in fp32, and then rounded at random, without bias.
struct HalfModel {
  const uint16_t* x = nullptr;  // null: the model is fp32
  uint16_t* x_out = nullptr;    // may be x
  RandomKey key{};              // the key of the rounding
};

struct Optimizer {
  int kind = -1;  // the place in Optimizers; negative: no step, only sums and rows change
  Hyper hyper{};
  Moments moments;
  const float* x = nullptr;  // null: the model is `half`
  float* x_out = nullptr;    // may be x
  HalfModel half{};

  bool steps() const { return kind >= 0; }
};

}  // namespace fastagg
