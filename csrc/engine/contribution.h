// The properties of an answer from which a direction plans a step, and limits that all directions share.
#pragma once

#include <cstdint>
#include <vector>

#include "../plan.h"

namespace fastagg::engine {

struct Answer;

struct Contribution {
  Answer* answer = nullptr;     // the answer that has the update
  int64_t client = -1;          // the client's place (clients.h), which is the client's number if clients are numbered
  int64_t start = 0;            // the version that the update was trained from
  int64_t now = 0;              // the server's current version
  double gain = 1.0;            // the factor by which kernels clip the update; 1 if the extension has clipped it
  double moves = 1.0;           // the clipping factor of the statistics: the update's, by kernels or by the extension
  double weight = 1.0;          // the update's weight by the staleness policy
  double share = 1.0;           // the update's weight in a mean, such as the client's number of samples
  double norm = 0.0;            // the update's norm, after clipping; of a batch's models: kLargestElement
  const float* base = nullptr;  // the model that the client trained from; null: the step does not need that model
  const Update* update = nullptr;
  // A leaf server's sum has `count` updates, already multiplied by their weights. `total` is the sum of their shares.
  int64_t count = 1;
  double total = -1.0;  // negative: the contribution is one update, which counts by its share
  double counts_for() const { return total < 0.0 ? share : total; }
};

// Returns the codes of an encoded update if they are a row of this format, and the update's factors have the product 1.
// Otherwise returns null: the update must be converted.
const void* row_in(const Contribution& contribution, int format);

using Contributions = std::vector<Contribution>;

// The effect of a plan. kKept: model and version stay. kStep: the optimizer steps. kIdle: only the version increases.
enum class Outcome { kKept, kStep, kIdle };

// When the planned updates are read. kMeasured: before the plan, so the norms are known. kReadOnce: only in the planned
// kernel, which computes the norm. kUpdates: after the plan, in one pass that checks a batch of updates and adds the
// updates to a sum. kModels: as kUpdates, for trained models. kStillModels: as kModels, and no sender writes to the
// models during the call.
enum class ReadMode { kMeasured, kReadOnce, kUpdates, kModels, kStillModels };

// The largest allowed magnitudes: kLargestElement of a direction's elements, kLargestSum of sums and first moments,
// kLargestMoment of second moments, kLargestModel of models. Up to these limits no square and no sum overflows.
constexpr int32_t kLargestElementBits = 0x5d800000;  // kLargestElement as the bits of a float
constexpr double kLargestElement = 0x1p60, kLargestSum = 0x1p120, kLargestMoment = 0x1p126, kLargestModel = 3.4028e38;
constexpr double kRounded = 1.01;   // rounding to bf16 or a wire format increases a magnitude by at most this factor
constexpr double kHeaviest = 1e30;  // the largest weight for which fp32 sums and inverse weights stay finite

}  // namespace fastagg::engine
