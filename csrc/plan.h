// The structs that describe a step. They come from Python, and the kernels for the CPU and for CUDA take them. The
// bindings build them by keyword and check them, so a kernel never gets an incomplete struct.
//
// Addresses point to fp32 vectors in the memory of the device that runs the step, unless a type says otherwise.
#pragma once

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
// The types of a whole encoded update: for kEncoded `data` is its Wire, for kDeviceEncoded its DeviceWire, which lies
// in host memory and has the device's addresses.
constexpr Dtype kEncoded = static_cast<Dtype>(8), kDeviceEncoded = static_cast<Dtype>(9);
struct DeviceWire : Wire {
  const float* numbers = nullptr;  // the decoded numbers; null if they have been released
};

// An update as it arrived: consecutive pieces of the flat vector. Each is contiguous and is read in place.
struct Piece {
  const void* data;
  int64_t begin;  // position in the flat vector
  int64_t size;
  Dtype dtype;
};

struct Update {
  std::vector<Piece> pieces;
  int64_t size = 0;

  void add(const void* data, int64_t count, Dtype dtype) {
    if (count > 0) pieces.push_back({data, size, count, dtype});
    size += count;
  }
};

// One client's row. The format gives the type of `data`. Scales are null if the format has none. Without data there is
// no row.
struct Row {
  void* data = nullptr;
  float* scales = nullptr;
};

struct Term {
  Row row;
  float weight;
};

// The rows of all clients: slot s starts at data + s*row_bytes, its scales at scales + s*row_scales.
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

  // A row outside of the slots, as a client sends it: its data, directly followed by its scales.
  Row packed_at(void* place) const {
    if (place == nullptr || row_scales() == 0) return {place, nullptr};
    return {place, reinterpret_cast<float*>(static_cast<char*>(place) + row_bytes())};
  }
};

// A part of a block's sum over the slots, which is computed over several calls: slots first_slot..last_slot-1 of one
// block of 1,024 elements. `shadow` is the block's sum in double, with a number for each element.
struct RowJob {
  int64_t block, first_slot, last_slot;
  double* shadow;
  int64_t shift = 0;   // slot s has weights[s - shift]; 0 on the CPU, where all weights are there
  bool fresh = false;  // the shadow is not read; it counts as zeros
};

// An update that waits for its round, unchanged, and its factor.
struct WeightedUpdate {
  const Update* update;
  float by;
};

// Combines a round's updates in another way than by their sum.
class Runner;
class Combiner {
 public:
  virtual ~Combiner() = default;
  // Writes each update's factor for the combination. It may ask the runner to measure updates. Returns each update's
  // weight by the rule, without its own factor; empty if the rule combines elements one by one. May refuse.
  virtual std::vector<double> weigh(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner,
                                    float* weights) const = 0;
  virtual CombineSetting how(int64_t count) const = 0;
};

// Working memory for a block of every waiting update, for each thread.
class Desks;

// The sum of the updates so far. `out`: where a calibrated direction writes the new sum if it does not step. May be
// acc.
struct Buffer {
  const float* acc = nullptr;  // null: no update so far
  float* out = nullptr;
  float scale = 1.0f;  // turns the sum into a mean: 1/M or 1/sum of weights
  const std::vector<WeightedUpdate>* held = nullptr;
  const Combiner* combine = nullptr;
  Desks* desks = nullptr;
};

// Which row is replaced, and where the new one goes (it may be the same place). The key is that of the row's rounding.
// Its step is the arrival's number, which the sum's dither uses, too. `coded` is only for coded rows.
struct Exchange {
  int format = kPlainRows;
  Row read, write;
  RandomKey key{};
  Row coded{};  // the new row, if the update was sent in this form; the update is then not read
};

// The sum over clients. With mean, the terms (sum += weight*row each) come before D is formed, with calibrated after
// it.
struct Sum {
  float* values = nullptr;
  float entering = 1.0f, leaving = 1.0f;
  float scale = 1.0f;
  std::vector<Term> terms;
};

// Noise that a step adds to its direction (math/noise.h): `scale` times normal numbers with standard deviation
// `deviation`, or `scale` times correlated noise n: n <- n - sum of omega*past, then each past <- theta*past + n.
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

// The factors of a tensor that is turned towards the momentum. The tensor's elements end before `end`.
struct Turn {
  int64_t end;
  float weight, along;  // `along` = 0: the tensor is not turned
};

// math/directions.h defines each kind, and which of these fields it uses.
struct Direction {
  DirectionKind kind = kSingle;
  double gain = 1.0;                         // of the update only (clipping)
  double weight = 1.0;                       // of the client's whole contribution (staleness, samples)
  const std::vector<Turn>* turns = nullptr;  // for single: factors of all tensors, in place of weight
  const float* base = nullptr;               // for blend
  Buffer buffer;                             // for flush, calibrated
  Exchange row;                              // for mean, calibrated
  Sum sum;
  Noise noise;
};

// Moments are fp32 or, if `units_m` is not null, in 8 bits: a byte for each element, padded to whole scale blocks, with
// the blocks' units (math/moments.h) and the key of their rounding.
struct Moments {
  float *m = nullptr, *v = nullptr, *vhat = nullptr;
  uint8_t *coded_m = nullptr, *coded_v = nullptr, *coded_vhat = nullptr;
  float *units_m = nullptr, *units_v = nullptr;
  RandomKey key{};

  bool coded() const { return units_m != nullptr; }
};

// A model in bf16, only on the CPU. It steps in fp32, block by block, and the new model is rounded without bias.
struct HalfModel {
  const uint16_t* x = nullptr;  // null: the model is fp32
  uint16_t* x_out = nullptr;    // may be x
  RandomKey key{};              // of the rounding
};

struct Optimizer {
  int kind = -1;  // place in Optimizers; negative: no step, only sums and rows move
  Hyper hyper{};
  Moments moments;
  const float* x = nullptr;  // null: the model is `half`
  float* x_out = nullptr;    // may be x
  HalfModel half{};

  bool steps() const { return kind >= 0; }
};

}  // namespace fastagg
