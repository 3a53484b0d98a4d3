// The part of an answer that its direction uses to plan a step.
#pragma once

#include <cstdint>
#include <vector>

#include "../plan.h"

namespace fastagg::engine {

struct Answer;

struct Contribution {
  Answer* answer = nullptr;     // the answer of the contribution
  int64_t client = -1;          // the place of the client's record; the client's number if clients are numbered
  int64_t start = 0;            // the version that the update was trained from
  int64_t now = 0;              // the server's version
  double gain = 1.0;            // the clipping factor of the update
  double moves = 1.0;           // the clipping factor of the client's statistics, even if the update arrived clipped
  double weight = 1.0;          // the weight by staleness
  double share = 1.0;           // in a mean: the client's number of samples, or 1
  double norm = 0.0;            // the update's norm, after clipping
  const float* base = nullptr;  // the model that the update was trained from, if the step needs that model
  const Update* update = nullptr;
  // For a leaf's sum: the number of its updates, which are weighted already, and the sum of their shares.
  int64_t count = 1;
  double total = -1.0;  // negative: this is one update, which counts by its share
  double counts_for() const { return total < 0.0 ? share : total; }
};

// Returns the encoded update's bytes if they are a row in this format. Null: the update must be converted.
const void* row_in(const Contribution& contribution, int format);

using Contributions = std::vector<Contribution>;

// kKept: the update waits. kStep: the model steps. kIdle: the version grows without a step.
enum class Outcome { kKept, kStep, kIdle };

// When updates are read. kMeasured: before the plan, so that norms are known. kReadOnce: by the step's kernel, which
// finds the norm. kUpdates, kModels: by one pass that checks several updates or trained models, and adds them to a sum.
// kStillModels: the same as kModels, but nobody writes to the models during the call.
enum class ReadMode { kMeasured, kReadOnce, kUpdates, kModels, kStillModels };

// The largest allowed magnitude of an element. Up to that magnitude, all squares and sums stay finite.
constexpr int32_t kLargestElementBits = 0x5d800000;  // 2^60 in fp32
constexpr double kLargestElement = 0x1p60, kLargestSum = 0x1p120, kLargestMoment = 0x1p126, kLargestModel = 3.4028e38;
constexpr double kRounded = 1.01;   // the most by which rounding to bf16, or to a wire format, makes a number larger
constexpr double kHeaviest = 1e30;  // the largest weight for which fp32 sums and inverse weights stay finite

}  // namespace fastagg::engine
