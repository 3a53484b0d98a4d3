// The properties of an answer from which a direction plans a step, and limits that all directions share.
#pragma once

#include <cstdint>
#include <vector>

#include "../plan.h"

namespace fastagg::engine {

struct Answer;

struct Contribution {
  Answer* answer = nullptr;  // the answer that has the update
  int64_t client = -1;       // the place of the client's record; the client's number if clients are numbered
  int64_t start = 0;         // the version that the update was trained from
  int64_t now = 0;           // the server's version
  double gain = 1.0;         // the clipping factor of the update
  double moves = 1.0;        // the clipping factor of the client's statistics, even if the extension clipped the update
  double weight = 1.0;       // the update's weight by the staleness policy
  double share = 1.0;        // the weight in a mean: the client's number of samples, or 1
  double norm = 0.0;         // the update's norm, after clipping
  const float* base = nullptr;  // the model that the client trained from, if the step needs that model
  const Update* update = nullptr;
  // A leaf server's sum has `count` updates, which are weighted already. `total` is the sum of these updates' shares.
  int64_t count = 1;
  double total = -1.0;  // negative: the contribution is one update, which counts by its share
  double counts_for() const { return total < 0.0 ? share : total; }
};

// Returns the codes of an encoded update if they are a row of this format. Null: the update must be converted.
const void* row_in(const Contribution& contribution, int format);

using Contributions = std::vector<Contribution>;

// The effect of a plan. kKept: model and version stay. kStep: the model steps. kIdle: only the version increases.
enum class Outcome { kKept, kStep, kIdle };

// When the planned updates are read. kMeasured: before the plan, so the norms are known. kReadOnce: only in the step's
// kernel, which computes the norm. kUpdates, kModels: after the plan, in one pass that checks several updates or
// trained models and adds them to a sum. kStillModels: like kModels, and no sender writes to the models during the
// call.
enum class ReadMode { kMeasured, kReadOnce, kUpdates, kModels, kStillModels };

// The largest allowed magnitudes: of a direction's elements (as a number, and as the bits of a float), of sums and
// first moments, of second moments, and of models. Below these limits no square and no sum overflows.
constexpr int32_t kLargestElementBits = 0x5d800000;  // 2^60 as a float
constexpr double kLargestElement = 0x1p60, kLargestSum = 0x1p120, kLargestMoment = 0x1p126, kLargestModel = 3.4028e38;
constexpr double kRounded = 1.01;   // rounding to bf16 or a wire format increases a magnitude by at most this factor
constexpr double kHeaviest = 1e30;  // the largest weight for which fp32 sums and inverse weights stay finite

}  // namespace fastagg::engine
