// The CPU's operations, for the bindings: steps, sums, rows, norms. All vectors are fp32. Results do not depend on the
// number of threads, the instruction set or the tuning.
#pragma once

#include <array>
#include <atomic>
#include <vector>

#include "../plan.h"

namespace fastagg::cpu {

using fastagg::RowJob;

// A whole server step, direction and optimizer, in one pass over memory; without an optimizer only sums and rows move.
// Bytes per parameter (fp32): AMSGrad on a given direction 36, FedBuff flush 16, FADAS flush 40, apply 12; ACE into SGD
// 28 with fp32 rows, 24 bf16, 22 int8, 21 int4, plus scales (1.6% of a byte per byte of row at most).
void step(const Update& update, const Direction& direction, const Optimizer& optimizer);

// acc_out = acc + weight*update (12 bytes per parameter); acc null starts a new sum (8).
void accumulate(const Update& update, const float* acc, float weight, float* acc_out);

// Elements first..first+count-1 as they are, `item` bytes each (all pieces are of one type), put together.
void copy(const Update& update, int64_t first, int64_t count, int64_t item, void* out);

// sum = sum of weights[s]*row(s) over all slots with a weight other than 0, added in double and rounded once, for the
// blocks first, first + stride, ... below last, of 1,024 elements.
void recompute_sum(const Rows& rows, const float* weights, float* sum, int64_t first, int64_t last, int64_t stride);

// For every job, slot after slot: shadow += weights[slot]*row(slot), the product in fp32, the sum in double. Slots of
// weight 0 are not read; weights null: `weight` for every slot. No two jobs have the same shadow.
//
// A shadow that all slots were added to holds the bits that recompute_sum rounds, however the slots were divided over
// calls.
void add_rows(const Rows& rows, const RowJob* jobs, int64_t count, const float* weights, float weight);

// sum = shadow, rounded once, for every job's block of a vector of `size` elements; slots do not matter here.
void settle_rows(const RowJob* jobs, int64_t count, float* sum, int64_t size);

// out = row(slot), dequantised.
void read_row(const Rows& rows, int64_t slot, float* out);

// Sum of squares in double, in reduce.h's fixed shape (4 bytes per parameter); not finite exactly when some element is
// not finite.
double sum_squares(const Update& update);

// Both norms of AsyncFedED (its Eq. 6) in one read, 12 bytes per parameter, and FedAC's inner product.
struct Distances {
  double moved;   // |x - base|^2
  double update;  // |update|^2
  double inner;   // (x - base).update, where it is wanted; else 0
};
Distances distances(const Update& update, const float* x, const float* base, bool wants_inner);

// Whether the update is far nearer to x than to zero, |u - x| < 0.1*|u|, on at most 1,024 elements evenly spread. False
// for an update that is zero there or not finite.
bool nearly(const Update& update, const float* x);

// The sums of which these are the totals (reduce.h), group by group: of a slice of the model, they are the whole's own.
// In the order update, moved, inner.
using GroupSums = std::array<double, 3>;
std::vector<GroupSums> squares_by_group(const Update& update);
std::vector<GroupSums> distances_by_group(const Update& update, const float* x, const float* base, bool wants_inner);

// A random linear map to k numbers that keeps norms: E|sketch(u)|^2 = |u|^2, relative deviation sqrt(2/k).
// Each block of 1,024 elements is added, with random signs, to k buckets on a circle from a random one on; so two
// elements of a block never meet, and two of different blocks with probability 1/k. k >= 1024.
void sketch(const Update& update, int64_t k, uint64_t seed, float* out);

// A client's model after training, and the model it started from; base null: the difference itself.
struct Trained {
  Update model;
  const float* base;
  float weight;
};

// acc_out = acc + weight_0*(model_0 - base_0) + weight_1*(model_1 - base_1) + ..., element by element in this order, so
// that one call gives the bits of one call for each. acc null starts a new sum. A sum that a difference spoils is lost,
// so acc_out is acc only for who has looked before: acc_out null writes nothing.
//
// largest[k]: the bits of the largest magnitude in model_k - base_k, 0 to begin with; those of infinity or NaN are
// above any number's. It costs no read of its own.
//
// Bytes per parameter: 4 for each model, 4 for each base that is not the one before, 8 for the sum (4 if it is new).
void fold(const std::vector<Trained>& trained, const float* acc, float* acc_out,
          std::vector<std::atomic<int32_t>>& largest);

// CRC-32C (Castagnoli, as in RFC 3720) of `count` bytes, from the checksum of what came before them (0: nothing).
// The processor has an instruction for it, or it is done by table; `in_software` asks for the table.
uint32_t crc32c(const void* data, int64_t count, uint32_t before, bool in_software);

}  // namespace fastagg::cpu
