// The structs that describe a step to the kernels for the CPU and for CUDA. The bindings build structs from Python by
// keyword and check them, so a kernel never gets an incomplete struct.
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

// A piece of an update as it arrived. Each piece is contiguous and is read in place. An update's pieces follow each
// other in the flat vector.
struct Piece {
  const void* data;
  int64_t begin;  // position in the flat vector
  int64_t size;
  Dtype dtype;
};

// The elements of an update. If `limit` is finite, the elements were measured, and lie in memory that their sender may
// still write to. Kernels then limit each element's magnitude to `limit` while they read the element. A NaN gets the
// magnitude `limit`. An element that nobody has changed keeps its value.
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

// A part of the sum over the slots, for one block of 1,024 elements: this call adds slots first_slot..last_slot-1.
// `shadow` is the block's sum after the calls so far, with a double for each element.
struct RowJob {
  int64_t block, first_slot, last_slot;
  double* shadow;
  int64_t shift = 0;   // slot s has weights[s - shift]; 0 on the CPU, which has all slots' weights
  bool fresh = false;  // whether the shadow counts as zeros, and is not read
};

// An update that waits for its round in the form in which it came. `by` is its factor.
struct WeightedUpdate {
  const Update* update;
  float by;
};

// Combines a round's updates in another way than by their sum.
class Runner;
class Combiner {
 public:
  virtual ~Combiner() = default;
  // Writes each update's factor for the combination to `weights`. May let the runner measure updates. Returns the
  // weight that the rule gives each update, without the update's own factor. Returns no weights if the rule combines
  // elements one by one. May throw Refusal.
  virtual std::vector<double> weigh(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner,
                                    float* weights) const = 0;
  virtual CombineSetting how(int64_t count) const = 0;
};

// The working memory of each thread, which holds a block of every waiting update.
class Desks;

// The sum of the updates so far (`acc`). A calibrated direction that does not step writes the new sum to `out`, which
// may be `acc`.
struct Buffer {
  const float* acc = nullptr;  // null: no update so far
  float* out = nullptr;
  float scale = 1.0f;  // the factor that turns the sum into a mean: 1/M or 1/sum of weights
  const std::vector<WeightedUpdate>* held = nullptr;
  const Combiner* combine = nullptr;
  Desks* desks = nullptr;
};

// The client's row at `read` is replaced by a new row at `write`, which may be the same place. `key` is for the new
// row's rounding. The key's step is the arrival's number, and the sum's dither uses that number too.
struct Exchange {
  int format = kPlainRows;
  Row read, write;
  RandomKey key{};
  Row coded{};  // the new row, if the update was sent in the rows' format; the update is then not read
};

// The sum over clients' rows. Each term adds weight*row to the sum. A mean adds the terms before the direction is
// formed, and a calibrated direction adds them afterwards (math/directions.h).
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

// The factors of a tensor that is turned towards the momentum. The tensor's elements end before `end`.
struct Turn {
  int64_t end;
  float weight, along;  // `along` = 0: the tensor is not turned
};

// math/directions.h defines each kind, and which of these fields it uses.
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
// padded to whole scale blocks, and a unit for each block (math/moments.h). `key` is for their rounding.
struct Moments {
  float *m = nullptr, *v = nullptr, *vhat = nullptr;
  uint8_t *coded_m = nullptr, *coded_v = nullptr, *coded_vhat = nullptr;
  float *units_m = nullptr, *units_v = nullptr;
  RandomKey key{};

  bool coded() const { return units_m != nullptr; }
};

// A model in bf16, only on the CPU. Each block steps in fp32. The new model is then rounded without bias.
struct HalfModel {
  const uint16_t* x = nullptr;  // null: the model is fp32
  uint16_t* x_out = nullptr;    // may be x
  RandomKey key{};              // the key of the rounding
};

struct Optimizer {
  int kind = -1;  // place in Optimizers; negative: no step, only sums and rows change
  Hyper hyper{};
  Moments moments;
  const float* x = nullptr;  // null: the model is `half`
  float* x_out = nullptr;    // may be x
  HalfModel half{};

  bool steps() const { return kind >= 0; }
};

}  // namespace fastagg
