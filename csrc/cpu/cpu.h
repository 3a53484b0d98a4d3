// The CPU's operations: steps, sums, rows, norms. All vectors are fp32. Results do not depend on the number of threads,
// the instruction set or the tuning.
#pragma once

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "../plan.h"

namespace fastagg::cpu {

using fastagg::RowJob;

// isas() lists the instruction sets in this build, best first, and whether this processor has each of them. isa() is
// the instruction set in use. select() changes the instruction set. It returns false and changes nothing if the
// processor does not have `name`.
std::vector<std::pair<const char*, bool>> isas();
const char* isa();
bool select(const char* name);

// Does a whole server step, direction and optimizer, in one pass over memory. Without an optimizer only sums and rows
// change. Bytes per parameter (fp32): AMSGrad on a given direction 36, FedBuff flush 16, FADAS flush 40, apply 12; ACE
// into SGD 28 with fp32 rows, 24 with bf16, 22 with int8, 21 with int4, plus scales (at most 1.6% of a byte per byte of
// row).
void step(const Update& update, const Direction& direction, const Optimizer& optimizer);

// acc_out = acc + weight*update (12 bytes per parameter). If acc is null, acc_out = weight*update (8 bytes).
void accumulate(const Update& update, const float* acc, float weight, float* acc_out);

// acc_out = acc + by_0*update_0 + by_1*update_1 + ..., in this order and in one pass. The result has the same bits as
// if `accumulate` were called for each update. acc_out may be acc.
void add_held(const std::vector<WeightedUpdate>& held, const float* acc, float* acc_out);

// The same as `step` and `accumulate`, for memory that its sender may change meanwhile. Each element is read once, into
// the L1 cache. Both functions return the sum of squares of the values read (sum_squares). If that sum is not finite,
// the output is invalid, so the output must not overwrite memory that is still needed. Rows and 8-bit moments are not
// supported.
double step_once(const Update& update, const Direction& direction, const Optimizer& optimizer);
double accumulate_once(const Update& update, const float* acc, float weight, float* acc_out);

// Copies elements first..first+count-1 to `out`, unconverted. All pieces must have the same type, of `item` bytes.
void copy(const Update& update, int64_t first, int64_t count, int64_t item, void* out);

// sum = sum of weights[s]*row(s) over all slots with a nonzero weight, added in double and rounded once. The sum is
// computed for the blocks first, first + stride, ... below last. A block has 1,024 elements.
void recompute_sum(const Rows& rows, const float* weights, float* sum, int64_t first, int64_t last, int64_t stride);

// For every job, slot after slot: shadow += weights[slot]*row(slot), with the product in fp32 and the sum in double.
// Slots of weight 0 are not read. If weights is null, every slot has the weight `weight`. No two jobs may have the same
// shadow.
//
// Once all slots have been added to a shadow, the shadow has the bits of recompute_sum's sum before rounding. It does
// not matter how the slots were divided over calls.
void add_rows(const Rows& rows, const RowJob* jobs, int64_t count, const float* weights, float weight);

// sum = shadow, rounded once, for every job's block of a vector of `size` elements. The jobs' slots have no effect.
void settle_rows(const RowJob* jobs, int64_t count, float* sum, int64_t size);

// out = row(slot), dequantised.
void read_row(const Rows& rows, int64_t slot, float* out);

// The sums that are computed for every tensor of a model while an update u is read (4 bytes more per parameter, for m).
// Each tensor is divided into parts, which end with its strands (math/reduce.h). The parts' sums are added in order, in
// double. `ends`: where tensors end. The last tensor ends with the model.
class Tensors {
 public:
  explicit Tensors(std::vector<int64_t> ends);
  struct TensorSums {
    double update, m, inner;  // |u|^2, |m|^2, u.m
  };
  TensorSums of(size_t tensor) const;
  const std::vector<int64_t>& ends() const { return ends_; }
  int64_t nbytes() const { return static_cast<int64_t>(parts_.size() * sizeof(TensorSums)); }
  // Returns where the parts begin, and then where the last part ends. A device adds up the parts' sums itself.
  std::vector<int64_t> begins() const;
  TensorSums* parts() { return parts_.data(); }
  // Adds elements at..at+count-1, which must be in a single strand. Several threads may add different elements at once.
  void add(const float* values, int64_t at, int64_t count);

  const float* m = nullptr;

 private:
  int64_t begin(size_t tensor) const { return tensor == 0 ? 0 : ends_[tensor - 1]; }
  std::vector<int64_t> ends_;
  std::vector<size_t> first_;  // by tensor: the place of its first part
  std::vector<TensorSums> parts_;
};

// The sum of squares in double, in reduce.h's fixed order (4 bytes per parameter). The sum is infinite or NaN if, and
// only if, some element is.
double sum_squares(const Update& update, Tensors* tensors = nullptr);

// Copies an update into `copy`, which has the same elements of the same types, and returns the copy's sum of squares.
// Every byte is read once (8 bytes per parameter).
double absorb(const Update& update, const Update& copy, Tensors* tensors = nullptr);
// Copies without a sum.
void copy(const Update& update, const Update& to);

// Both norms of AsyncFedED (its Eq. 6) and FedAC's inner product. They are computed in one read, 12 bytes per
// parameter.
struct Distances {
  double moved;   // |x - base|^2
  double update;  // |update|^2
  double inner;   // (x - base).update, or 0 if wants_inner is false
};
Distances distances(const Update& update, const float* x, const float* base, bool wants_inner);

// Whether an answer's numbers look as if they had another form (update or trained model) than their sender says. The
// numbers are compared with the model x that the client was sent. An update u is misformed if u is nearly the model or
// its negative: |u - x| or |u + x| < 0.1*|u|. A trained model t is misformed if t is nearly zero: |t| < 0.1*|t - x|. At
// most 1,024 elements are compared. Fewer than 16 elements, or a constant, never count as misformed.
bool is_misformed(const Update& numbers, const Update& x, bool is_trained);

// Encodes an update (math/wire.h) into the allocated arrays of `into`, which has as many elements. Top-k takes the
// elements of the largest magnitudes, and the first ones of equal magnitudes. `ends` must be set already. `key` is the
// key of the random rounding. Returns whether all numbers are finite. If not, the output is invalid.
bool encode(const Update& update, const Wire& into, const RandomKey& key);
void decode(const Wire& wire, int64_t at, float* out, int64_t n);  // `at` is a multiple of kScaleBlock

// A client's model after training, and the model that the training started from. If base is null, `model` is the
// difference itself.
struct TrainedModel {
  Update model;
  const float* base;
  float weight;
  Dtype dtype = kFloat32;  // the base's type
};

// acc_out = acc + weight_0*(model_0 - base_0) + weight_1*(model_1 - base_1) + ..., added element by element in this
// order. So one call gives the same bits as one call for each model. If acc is null, a new sum begins. A difference
// that is not finite spoils the sum. So acc_out may be acc only if the models were checked before. If acc_out is null,
// no sum is written.
//
// largest[k] is set to the bits of the largest magnitude in model_k - base_k. The caller must set largest[k] to 0
// before. The bits of infinity and NaN are larger than any number's. This needs no additional read.
//
// Bytes per parameter: 4 for each model, 4 for each base that differs from the one before, 8 for the sum (4 if it is
// new).
void fold(const std::vector<TrainedModel>& trained, const float* acc, float* acc_out,
          std::vector<std::atomic<int32_t>>& largest);

// acc_out = acc + weight_0*update_0 + .... The bits are those of one `accumulate_once` call for each update. squares[k]
// is what the call for update k returns. No update may have a base. acc_out must not be acc.
void fold_once(const std::vector<TrainedModel>& updates, const float* acc, float* acc_out,
               std::vector<double>& squares);

// FedEcho's distillation loss over a batch of rows (math/distill.h). T is float, or double for gradient checks.
// soft_targets() computes the teachers' targets from logits [rows, classes]: the probabilities of scale*logits, their
// argmax (the first of equal ones) and their entropy in nats.
template <typename T>
void soft_targets(const T* logits, double scale, int64_t rows, int64_t classes, T* probs, int64_t* labels,
                  double* entropy);

// Returns the mean loss over the rows that count, and writes the loss's gradient with respect to the student's logits
// [rows, classes]. Row r of the student belongs to the teacher's row `which[r]`, or to row r if `which` is null. A row
// with the label kIgnored does not count. Throws std::out_of_range, with nothing written, if `which` names a row
// outside `teachers` or a label is not a class.
struct DistillationLoss {
  double loss;
  double alpha;
};
template <typename T>
DistillationLoss distill(const T* logits, const T* probs, const int64_t* labels, const double* entropy,
                         const int64_t* which, int64_t teachers, int64_t rows, int64_t classes, double alpha_min,
                         double alpha_max, T* gradient);

// CRC-32C (Castagnoli, as in RFC 3720) of `count` bytes. `before` is the checksum of the bytes before them, or 0 if
// there are none. The function uses the processor's instruction if there is one, otherwise a table. `in_software`
// forces the table.
uint32_t crc32c(const void* data, int64_t count, uint32_t before, bool in_software);

}  // namespace fastagg::cpu
