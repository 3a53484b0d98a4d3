// CUDA launches. This header is plain C++, so the bindings need no CUDA header. An Error's text has the runtime's
// message and the name of the launch.
//
// Everything is asynchronous on the LaunchPlace's stream. Addresses are in device memory. Results equal the CPU's bit
// for bit, except those of the distillation loss.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "../plan.h"

namespace fastagg::cuda {

class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct LaunchPlace {
  int device;
  void* stream;        // a cudaStream_t
  bool loads = false;  // whether only to load the kernels, without a launch
};

int runtime_version();
int device_count();  // 0 if there is no driver or no device

// What the driver reports. driver() does not throw. It puts an error's text into `words`.
struct Driver {
  int devices = 0;
  int version = 0;    // the newest CUDA version that the driver supports, such as 12040 for 12.4; 0: there is no driver
  std::string words;  // without a device: why there is none, and what to do
};
Driver driver();
void compute_capability(int device, int* major, int* minor);

// The most pieces of an update. Kernels take their arguments by value, and every driver allows at least 4 KB of
// arguments.
constexpr int kMostPieces = 200;

// Takes a step along any of the five directions. Only mean and calibrated directions may have no optimizer.
void step(const Update& update, const Direction& direction, const Optimizer& optimizer, const LaunchPlace& where);

// Takes a step along an update whose tensors are turned (single). The array `of` is on the device.
struct Turns {
  const Turn* of;
  int64_t count;
};
void turned_step(const Update& update, double gain, const Turns& turns, const Optimizer& optimizer,
                 const LaunchPlace& where);

constexpr int kSums = 3;

// Sums over parts of an update u and of the momentum m: |u|^2, |m|^2 and u.m. The order is reduce.h's order within a
// strand. Part p has elements begins[p]..begins[p + 1]-1, at most a strand. All addresses are on the device.
struct UpdateParts {
  const int64_t* begins;
  int64_t count;
  const float* m;
  double* sums;  // [count, kSums]
};
void sum_parts(const Update& update, const UpdateParts& parts, const LaunchPlace& where);

// out = the decoded update. The update's arrays are on the device.
void decode(const Wire& wire, float* out, const LaunchPlace& where);

// A waiting update with its factor `by`. It is one vector of any type or, if `data` is null, encoded. HeldRows is the
// list of all waiting updates, which have `size` elements each. The list is on the device, too.
struct HeldRow {
  const void* data = nullptr;
  Dtype dtype = kFloat32;
  float by = 1.0f;
  Wire wire;
};
struct HeldRows {
  const HeldRow* of;
  int64_t count, size;
};

// out = the combination of the rows, each times its factor (math/combine.h).
void combine(const HeldRows& rows, const CombineSetting& how, float* out, const LaunchPlace& where);

// Sums over pairs of rows as in Runner::pair_sums, by group (math/reduce.h) and by tile of kSide*kSide pairs. With n
// tiles side by side, tile t pairs the rows from t/n*kSide on with those from t%n*kSide on. `listed`: the wanted tiles.
// `count`: their number. `sums`: [count, kSide, kSide, groups]. A pair that equals another one has 0 there.
constexpr int64_t kSide = 16;
struct Tiles {
  const int32_t* listed;
  int64_t count;
  bool apart;
  double* sums;
};
void pair_sums(const HeldRows& rows, const Tiles& tiles, const LaunchPlace& where);

// out = acc + weight*update. If acc is null, a new sum begins.
void accumulate(const Update& update, const float* acc, double weight, float* out, const LaunchPlace& where);

// The blocks first, first + stride, ... below last. Each has 1,024 elements.
struct Blocks {
  int64_t first, last, stride;
};

// sum = sum of weights[s]*row(s) over all slots with a nonzero weight, added in double and rounded once. The sum is
// computed for `blocks` only. The weights are on the device.
void recompute_sum(const Rows& rows, const float* weights, float* sum, const Blocks& blocks, const LaunchPlace& where);

// The same as cpu::add_rows and cpu::settle_rows, in one launch each. The jobs and weights are on the device.
void add_rows(const Rows& rows, const RowJob* jobs, int64_t count, const float* weights, float weight,
              const LaunchPlace& where);
void settle_rows(const RowJob* jobs, int64_t count, float* sum, int64_t size, const LaunchPlace& where);

void zero(void* memory, int64_t bytes, const LaunchPlace& where);
// Both addresses must be in the device's memory or in pinned memory.
void copy(void* to, const void* from, int64_t bytes, const LaunchPlace& where);
// The addresses may be in any memory. The host waits for the copy.
void copy_now(void* to, const void* from, int64_t bytes, const LaunchPlace& where);

// out = row(slot), decoded.
void read_row(const Rows& rows, int64_t slot, float* out, const LaunchPlace& where);

// The model and the version that the update was trained from, if their distance is wanted. Otherwise both are null.
struct DistanceBase {
  const float* x = nullptr;
  const float* base = nullptr;
  bool inner = false;  // whether (x - base).update is wanted
};

// sums = |update|^2, |x - base|^2 and (x - base).update. A sum that is not wanted is 0. All vectors are read once, in
// reduce.h's fixed order. `sums` is in device memory or pinned. `scratch` has measure_scratch(update.size) numbers.
// Those from place measure_counters(update.size) on must be 0 at first, and every launch leaves them 0. Blocks of
// threads exchange data only through the scratch. So launches with different scratch, on any streams, and graphs of
// launches, do not disturb each other.
int64_t measure_scratch(int64_t size);
int64_t measure_counters(int64_t size);
void measure(const Update& update, const DistanceBase& against, double* scratch, double* sums,
             const LaunchPlace& where);

// Logits, [rows, classes].
struct Logits {
  const float* values;
  int64_t rows, classes;
};

// The teachers' probabilities, labels and entropies of every row (math/distill.h).
struct Targets {
  float* probs;
  int64_t* labels;
  double* entropy;
  int64_t rows;
};
void soft_targets(const Logits& logits, double scale, const Targets& out, const LaunchPlace& where);

// The distillation loss and its gradient. `which`: the teachers' row of each student row. Null: row r belongs to row r.
struct Loss {
  const int64_t* which;
  double alpha_min, alpha_max;
  double* scratch;  // 2 + rows numbers
  float* value;     // one number
  float* gradient;
};
void distill(const Logits& logits, const Targets& targets, const Loss& loss, const LaunchPlace& where);

}  // namespace fastagg::cuda
