// The operations on a CPU: steps, sums, rows, norms, encoding, distillation, checksums. Vectors are fp32 unless a type
// says otherwise. Results do not depend on the number of threads, the instruction set or the tuning.
#pragma once

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "../plan.h"

namespace fastagg::cpu {

using fastagg::RowJob;

// isas() returns the names of the instruction sets in this build, best first, and whether this processor has each of
// them. isa() returns the name of the instruction set in use. select() puts the instruction set `name` into use.
// select() returns false, and changes nothing, if the build or the processor does not have this instruction set.
std::vector<std::pair<const char*, bool>> isas();
const char* isa();
bool select(const char* name);

// Takes a server step in one pass over memory: computes the direction and applies the optimizer. If optimizer.kind is
// negative, only sums and rows change. Bytes of memory traffic per parameter in fp32: an update into SGD 12, an update
// into AMSGrad 36, FedBuff's flush 16, FADAS's flush 40. ACE into SGD takes 28 with fp32 rows, 24 with bf16, 22 with
// int8 and 21 with int4. With int8 and int4 rows, reading and writing the scales adds 0.03 bytes.
void step(const Update& update, const Direction& direction, const Optimizer& optimizer);

// acc_out = acc + weight*update (12 bytes per parameter). If acc is null, acc_out = weight*update (8 bytes).
void accumulate(const Update& update, const float* acc, float weight, float* acc_out);

// acc_out = acc + by_0*update_0 + by_1*update_1 + ..., in this order and in one pass. The result has the same bits as
// one call of `accumulate` for each update. There must be an update. acc may be null. acc_out may be acc.
void add_held(const std::vector<WeightedUpdate>& held, const float* acc, float* acc_out);

// step_once() and accumulate_once() do the same as step() and accumulate(), for an update whose memory the sender may
// change during the call. Each element is read once, into the L1 cache. Both functions return the sum of squares of the
// values read (sum_squares). If that sum is not finite, all outputs are invalid, moments too. So no output may
// overwrite memory that is still needed. Rows and 8-bit moments are not supported.
double step_once(const Update& update, const Direction& direction, const Optimizer& optimizer);
double accumulate_once(const Update& update, const float* acc, float weight, float* acc_out);

// Copies elements first..first+count-1 to `out`, without conversion. All pieces must have the same type, of `item`
// bytes.
void copy(const Update& update, int64_t first, int64_t count, int64_t item, void* out);

// sum = sum of weights[s]*row(s) over all slots with a nonzero weight, added in double and rounded once. The sum is
// computed for the blocks first, first + stride, ... below last. A block has 1,024 elements.
void recompute_sum(const Rows& rows, const float* weights, float* sum, int64_t first, int64_t last, int64_t stride);

// For every job and each of its slots in order: shadow += weights[slot]*row(slot), with the product in fp32 and the sum
// in double. Slots of weight 0 are not read. If weights is null, each slot has the weight `weight`. Every job has its
// own shadow.
//
// When all slots have been added in order, by any number of calls, a shadow is recompute_sum's sum before rounding.
void add_rows(const Rows& rows, const RowJob* jobs, int64_t count, const float* weights, float weight);

// sum = shadow, rounded once, in the block of every job. `sum` has `size` elements. The jobs' slots have no effect.
void settle_rows(const RowJob* jobs, int64_t count, float* sum, int64_t size);

// out = row(slot), decoded to fp32.
void read_row(const Rows& rows, int64_t slot, float* out);

// Sums for each tensor of a model, which are computed while an update u is read. The momentum m is read too, which
// takes 4 bytes more per parameter. Each tensor is cut into parts where the model's strands end (math/reduce.h). A
// tensor's sums are its parts' sums, added in order, in double. `ends` has the place after each tensor's last element.
class Tensors {
 public:
  explicit Tensors(std::vector<int64_t> ends);
  struct TensorSums {
    double update, m, inner;  // |u|^2, |m|^2, u.m
  };
  TensorSums of(size_t tensor) const;
  const std::vector<int64_t>& ends() const { return ends_; }
  int64_t nbytes() const { return static_cast<int64_t>(parts_.size() * sizeof(TensorSums)); }
  // Returns the first element of each part, and the end of the last part. A device needs these for the sums.
  std::vector<int64_t> begins() const;
  TensorSums* parts() { return parts_.data(); }
  // Computes the sums of the parts in elements at..at+count-1, which must be a whole strand of the model (the last one
  // may be short). Several threads may call `add` for different strands at the same time.
  void add(const float* values, int64_t at, int64_t count);

  const float* m = nullptr;  // the momentum, which must be set before `add` is called

 private:
  int64_t begin(size_t tensor) const { return tensor == 0 ? 0 : ends_[tensor - 1]; }
  std::vector<int64_t> ends_;
  std::vector<size_t> first_;  // for each tensor, the place of its first part
  std::vector<TensorSums> parts_;
};

// Returns the sum of squares in double, in reduce.h's fixed order (4 bytes per parameter). Also computes the sums of
// `tensors`, unless null. The result is infinite or NaN if, and only if, an element is infinite or NaN.
double sum_squares(const Update& update, Tensors* tensors = nullptr);

// Copies an update into `copy`, and returns the copy's sum of squares. `copy` must have the same elements in the same
// types. Every byte of the update is read once (8 bytes per parameter with the writes).
double absorb(const Update& update, const Update& copy, Tensors* tensors = nullptr);
// Copies an update into `to`, which must have the same elements in the same types.
void copy(const Update& update, const Update& to);

// The two squared norms that AsyncFedED needs (Eq. 6), and the inner product that FedAC needs. One pass computes them,
// with 12 bytes per parameter.
struct Distances {
  double moved;   // |x - base|^2
  double update;  // |update|^2
  double inner;   // (x - base).update, or 0 if wants_inner is false
};
Distances distances(const Update& update, const float* x, const float* base, bool wants_inner);

// Returns whether an answer probably has the wrong form: an update where the sender says that it is a trained model
// (`is_trained`), or the other way round. x is the model that the client was sent. An update u is misformed if u is
// nearly the model or its negative: |u - x| or |u + x| < 0.1*|u|. A trained model t is misformed if t is nearly zero:
// |t| < 0.1*|t - x|. At most 1,024 elements are compared. Returns false for an update of fewer than 16 elements, or if
// all compared elements are equal.
bool is_misformed(const Update& numbers, const Update& x, bool is_trained);

// Encodes an update into the arrays of `into` (math/wire.h), which must be allocated for the update's size. Top-k
// stores the elements of the largest magnitudes. Of equal magnitudes, the first are stored. For int8-tensor, `ends`
// must be set. `key` is for the random rounding. Returns whether all numbers are finite. If not, the output is invalid.
bool encode(const Update& update, const Wire& into, const RandomKey& key);
void decode(const Wire& wire, int64_t at, float* out, int64_t n);  // elements at..at+n-1; `at` % kScaleBlock must be 0

// A client's model after training. `base` is the model before training. If `base` is null, `model` is already the
// difference.
struct TrainedModel {
  Update model;
  const float* base;
  float weight;
  Dtype dtype = kFloat32;  // the type of the base's elements
};

// acc_out = acc + weight_0*(model_0 - base_0) + weight_1*(model_1 - base_1) + ..., added element by element in this
// order. So one call gives the same bits as one call for each model. If acc is null, the sum starts from zero. A
// difference that is not finite makes the sum invalid. So acc_out may be acc only if the models were checked before. If
// acc_out is null, no sum is written.
//
// largest[k] becomes the bits of the largest magnitude in model_k - base_k. The caller must set largest[k] to 0 before
// the call. Infinity and NaN have larger bits than any finite number. The magnitudes need no additional read.
//
// Bytes per parameter: 4 for each model, 4 for each base other than the previous one, 8 for the sum (4 without acc).
void fold(const std::vector<TrainedModel>& trained, const float* acc, float* acc_out,
          std::vector<std::atomic<int32_t>>& largest);

// acc_out = acc + weight_0*update_0 + .... The result has the bits of one `accumulate_once` call for each update.
// squares[k] becomes the value that the call for update k returns. There must be an update. Bases are ignored. acc may
// be null. acc_out must not be acc.
void fold_once(const std::vector<TrainedModel>& updates, const float* acc, float* acc_out,
               std::vector<double>& squares);

// FedEcho's distillation loss over a batch of rows (math/distill.h). T is float, or double for gradient checks.
// soft_targets() computes targets from the teachers' logits [rows, classes]. `probs` are the probabilities of
// scale*logits. `labels` are the most probable classes (the first of equal ones). `entropy` is in nats.
template <typename T>
void soft_targets(const T* logits, double scale, int64_t rows, int64_t classes, T* probs, int64_t* labels,
                  double* entropy);

// Returns alpha (Eq. 4), and the mean loss over the rows whose label is not kIgnored. Writes the loss's gradient with
// respect to the student's logits [rows, classes]. Row r of the student belongs to the teachers' row which[r], or to
// row r if `which` is null. `teachers` is the number of the teachers' rows. Throws std::out_of_range, with nothing
// written, if which[r] is not one of these rows, or if a label of these rows is neither a class nor kIgnored.
struct DistillationLoss {
  double loss;
  double alpha;
};
template <typename T>
DistillationLoss distill(const T* logits, const T* probs, const int64_t* labels, const double* entropy,
                         const int64_t* which, int64_t teachers, int64_t rows, int64_t classes, double alpha_min,
                         double alpha_max, T* gradient);

// Returns the CRC-32C (Castagnoli, as in RFC 3720) of `count` bytes. `before` is the checksum of earlier bytes to which
// these are appended, or 0 if there are none. Uses the processor's instruction if there is one, otherwise tables. With
// `in_software`, tables are always used.
uint32_t crc32c(const void* data, int64_t count, uint32_t before, bool in_software);

}  // namespace fastagg::cpu
