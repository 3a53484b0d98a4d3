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
// A whole update as it was encoded: `data` is its Wire. And on a device: `data` is its DeviceWire, in the host's
// memory, with the device's addresses.
constexpr Dtype kEncoded = static_cast<Dtype>(8), kDeviceEncoded = static_cast<Dtype>(9);
struct DeviceWire : Wire {
  const float* numbers = nullptr;  // that it stands for; null: they are let go
};

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

  void add(const void* data, int64_t count, Dtype dtype) {
    if (count > 0) pieces.push_back({data, size, count, dtype});
    size += count;
  }
};

// One client's row. `data` is typed by the format; scales are null where it has none. No data: no row.
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
  int64_t size = 0;  // elements of a row
  int64_t slots = 0;
  void* data = nullptr;
  float* scales = nullptr;

  int64_t row_bytes() const { return padded(size) * format_facts(format).bits / 8; }
  int64_t row_scales() const { return format_facts(format).scaled ? padded(size) / kScaleBlock : 0; }
  Row row(int64_t slot) const {
    if (slot < 0) return {};
    return {static_cast<char*>(data) + slot * row_bytes(), scales == nullptr ? nullptr : scales + slot * row_scales()};
  }

  // A row outside of the slots, as a client sends it: its data, and its scales right behind them.
  Row packed_at(void* place) const {
    if (place == nullptr || row_scales() == 0) return {place, nullptr};
    return {place, reinterpret_cast<float*>(static_cast<char*>(place) + row_bytes())};
  }
};

// A part of a sum over the slots that is made little by little: slots first_slot..last_slot-1 of one block of 1,024
// elements, and where the block's sum is kept in double, as many numbers as the block has elements.
struct RowJob {
  int64_t block, first_slot, last_slot;
  double* shadow;
  int64_t shift = 0;   // slot s weighs weights[s - shift]; on the CPU all weights are there, and nothing is shifted
  bool fresh = false;  // the shadow holds nothing yet: it is taken as zeros, and not read
};

// An update that waits for its round, unchanged, and its factor.
struct WeightedUpdate {
  const Update* update;
  float by;
};

// A way to combine a round's updates that is not their sum.
class Runner;
class Combiner {
 public:
  virtual ~Combiner() = default;
  // Writes what each update is multiplied by as it is combined, which the runner may have to find out. Returns what
  // each update counts for by the rule, without its own factor; empty: elements are combined one by one. May refuse.
  virtual std::vector<double> weigh(const std::vector<WeightedUpdate>& held, int64_t size, Runner& runner,
                                    float* weights) const = 0;
  virtual CombineSetting how(int64_t count) const = 0;
};

// A place for a block of every update that waits, for as many threads as there are.
class Desks;

// What was added up so far. `out`, for a calibrated direction without a step: where the new sum goes, which may be acc.
struct Buffer {
  const float* acc = nullptr;  // null: nothing so far
  float* out = nullptr;
  float scale = 1.0f;  // what makes it a mean: 1/M or 1/sum of weights
  // flush on the CPU: updates that come between acc and the one of the step. With `combine`, D is what it makes of
  // them, and nothing else is read.
  const std::vector<WeightedUpdate>* held = nullptr;
  const Combiner* combine = nullptr;
  Desks* desks = nullptr;
};

// Which row is replaced, and where the new one goes: another place or the same. The key is that of its rounding; its
// step is the arrival's number, which the sum's dither follows too. The last is for coded rows only.
struct Exchange {
  int format = kPlainRows;
  Row read, write;
  RandomKey key{};
  Row coded{};  // the new row, if it is known already: then the update is not read
};

// The sum over clients. Terms (sum += weight*row each) come before D is formed with mean, and after it with calibrated.
struct Sum {
  float* values = nullptr;
  float entering = 1.0f, leaving = 1.0f;
  float scale = 1.0f;
  std::vector<Term> terms;
};

// Noise that a step adds to its direction (math/noise.h): `scale` times normal numbers of a standard deviation of
// `deviation`, or that much of correlated noise: n <- n - sum of omega*past; each past <- theta*past + n.
constexpr int kMostPast = 8;
struct PastNoise {
  float* values;
  float omega, theta;
};
struct Noise {
  ChaChaKey key{};
  float deviation = 0.0f;  // 0: there is none
  float scale = 1.0f;
  int count = 0;
  PastNoise past[kMostPast]{};
};

// The factors of a tensor that is turned towards the momentum. It ends before `end`.
struct Turn {
  int64_t end;
  float weight, along;  // 0: it is not turned
};

// math/directions.h says what each kind computes, and from which of these.
struct Direction {
  DirectionKind kind = kSingle;
  double gain = 1.0;                         // on the update alone (clipping)
  double weight = 1.0;                       // on the client's whole contribution (staleness, samples)
  const std::vector<Turn>* turns = nullptr;  // single: of all tensors, in place of weight
  const float* base = nullptr;               // blend
  Buffer buffer;                             // flush, calibrated
  Exchange row;                              // mean, calibrated
  Sum sum;
  Noise noise;
};

// Moments are fp32, or in 8 bits (`units_m` not null): a byte for each element, padded to whole scale blocks, and their
// units (math/moments.h), with the key of their rounding.
struct Moments {
  float *m = nullptr, *v = nullptr, *vhat = nullptr;
  uint8_t *coded_m = nullptr, *coded_v = nullptr, *coded_vhat = nullptr;
  float *units_m = nullptr, *units_v = nullptr;
  RandomKey key{};

  bool coded() const { return units_m != nullptr; }
};

// A model in bf16, on the CPU alone. It steps in fp32, block by block, and the next one is rounded without bias.
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
