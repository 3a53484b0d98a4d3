// The operations on a GPU. This header is plain C++, so the bindings need no CUDA header. A failed call, except of
// driver() and device_count(), throws an Error. The Error's text says what failed, and has the CUDA runtime's message.
//
// All operations with a LaunchPlace are asynchronous, on the place's stream, except copy_now. Addresses are in device
// memory unless a comment says otherwise. Results have the CPU's bits, except those of the distillation loss.
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
  bool loads = false;  // true: launches only load their kernels onto the device, and run nothing
};

int runtime_version();
int device_count();  // 0 if there is no driver or no device

// The CUDA driver's report. driver() does not throw. If there is an error, driver() sets `words`.
struct Driver {
  int devices = 0;
  int version = 0;    // the newest CUDA version that the driver supports, such as 12040 for 12.4; 0: there is no driver
  std::string words;  // the error, and for known errors what to do; empty: no error
};
Driver driver();
void compute_capability(int device, int* major, int* minor);

// The most pieces of an update. Kernels get the pieces as arguments, and every driver allows 4 KB of arguments.
constexpr int kMostPieces = 200;

// Takes a step along any direction that is not turned. The optimizer's `kind` may be negative (no step) only with a
// mean or a calibrated direction.
void step(const Update& update, const Direction& direction, const Optimizer& optimizer, const LaunchPlace& where);

// Takes a step along an update whose tensors are turned towards the momentum (plan.h). `of` is an array on the device,
// with a Turn for each of the model's `count` tensors.
struct Turns {
  const Turn* of;
  int64_t count;
};
void turned_step(const Update& update, double gain, const Turns& turns, const Optimizer& optimizer,
                 const LaunchPlace& where);

constexpr int kSums = 3;

// Sums over parts of an update u and of the momentum m: |u|^2, |m|^2 and u.m. The additions have the order of reduce.h
// within a strand. Part p has at most kStrand elements, begins[p]..begins[p + 1]-1. Addresses are on the device.
struct UpdateParts {
  const int64_t* begins;
  int64_t count;
  const float* m;
  double* sums;  // [count, kSums]
};
void sum_parts(const Update& update, const UpdateParts& parts, const LaunchPlace& where);

// out = the decoded update. The update's arrays are on the device.
void decode(const Wire& wire, float* out, const LaunchPlace& where);

// A waiting update and its factor `by`. The update is one vector of the type `dtype` or, if `data` is null, the encoded
// update `wire`. HeldRows is the list of all waiting updates, each of `size` elements. The list is on the device.
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

// Computes Runner::pair_sums (runner.h), separately for each group (math/reduce.h) and for each tile of kSide*kSide
// pairs. The rows are cut into n runs of kSide rows. The last run may be shorter. Tile t pairs the rows of run t/n with
// those of run t%n. `listed` has the `count` wanted tiles. `apart`: whether to sum squared differences instead of
// products. `sums` is [count, kSide, kSide, groups]. Only sums of existing rows, on and above the diagonal, are valid.
constexpr int64_t kSide = 16;
struct Tiles {
  const int32_t* listed;
  int64_t count;
  bool apart;
  double* sums;
};
void pair_sums(const HeldRows& rows, const Tiles& tiles, const LaunchPlace& where);

// out = acc + weight*update. If acc is null, out = weight*update.
void accumulate(const Update& update, const float* acc, double weight, float* out, const LaunchPlace& where);

// The blocks first, first + stride, ... below last. A block is 1,024 elements.
struct Blocks {
  int64_t first, last, stride;
};

// sum = sum of weights[s]*row(s) over all slots with a nonzero weight, added in double and rounded once. The sum is
// computed for `blocks` only. The weights are on the device.
void recompute_sum(const Rows& rows, const float* weights, float* sum, const Blocks& blocks, const LaunchPlace& where);

// These functions do the same as in cpu.h, with at most one launch each. Jobs and weights are on the device.
void add_rows(const Rows& rows, const RowJob* jobs, int64_t count, const float* weights, float weight,
              const LaunchPlace& where);
void settle_rows(const RowJob* jobs, int64_t count, float* sum, int64_t size, const LaunchPlace& where);

void zero(void* memory, int64_t bytes, const LaunchPlace& where);
// Copies memory. Both addresses must be in device memory or in pinned memory.
void copy(void* to, const void* from, int64_t bytes, const LaunchPlace& where);
// Copies memory, and waits until the copy is done. The addresses may be in any memory.
void copy_now(void* to, const void* from, int64_t bytes, const LaunchPlace& where);

// out = row(slot), decoded.
void read_row(const Rows& rows, int64_t slot, float* out, const LaunchPlace& where);

// The model x and the version `base` that the client trained from. Both are null if no distance is wanted.
struct DistanceBase {
  const float* x = nullptr;
  const float* base = nullptr;
  bool inner = false;  // whether (x - base).update is wanted
};

// sums = |update|^2, |x - base|^2 and (x - base).update. A sum that is not wanted is 0. All vectors are read once, and
// added in reduce.h's fixed order. `sums` is in device memory or pinned memory. `scratch` has
// measure_scratch(update.size) doubles. The doubles from place measure_counters(update.size) on must be 0 before the
// first launch, and every launch leaves them 0. Blocks of threads exchange data only through the scratch. So launches
// with different scratch may run at the same time, on any streams and in graphs.
int64_t measure_scratch(int64_t size);
int64_t measure_counters(int64_t size);
void measure(const Update& update, const DistanceBase& against, double* scratch, double* sums,
             const LaunchPlace& where);

// The logits of a batch, [rows, classes].
struct Logits {
  const float* values;
  int64_t rows, classes;
};

// The teachers' targets (math/distill.h): probabilities [rows, classes], label and entropy of every row. soft_targets()
// computes the targets from scale*logits.
struct Targets {
  float* probs;
  int64_t* labels;
  double* entropy;
  int64_t rows;
};
void soft_targets(const Logits& logits, double scale, const Targets& out, const LaunchPlace& where);

// Arguments of `distill`. The student's row r belongs to the teachers' row which[r], or to row r if `which` is null. If
// that row does not exist, or if its label is neither a class nor kIgnored, the loss is NaN.
struct Loss {
  const int64_t* which;
  double alpha_min, alpha_max;
  double* scratch;  // room for 2 + rows numbers
  float* value;     // room for one number: the mean loss
  float* gradient;  // [rows, classes]
};
void distill(const Logits& logits, const Targets& targets, const Loss& loss, const LaunchPlace& where);

}  // namespace fastagg::cuda
