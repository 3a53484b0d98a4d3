// What an answer brings to a step, as its direction sees it when the step is planned.
#pragma once

#include <cstdint>
#include <vector>

#include "../plan.h"

namespace fastagg::engine {

struct Answer;

struct Contribution {
  Answer* answer = nullptr;     // it came with
  int64_t client = -1;          // the place of its record; its number, where clients are numbered
  int64_t start = 0;            // the version it was trained from
  int64_t now = 0;              // the server's
  double gain = 1.0;            // clipping
  double moves = 1.0;           // and of the client's statistics: the same, also where the update came clipped
  double weight = 1.0;          // staleness
  double share = 1.0;           // in a mean: the client's number of samples, or 1
  double norm = 0.0;            // of the update, after clipping
  const float* base = nullptr;  // the model it was trained from, where the rule or a trained model needs it
  const Update* update = nullptr;
  // A leaf's: the sum of so many updates, each of them weighed already, and what they count for in a mean.
  int64_t count = 1;
  double total = -1.0;  // negative: one update, which counts for its share
  double counts_for() const { return total < 0.0 ? share : total; }
};

// The row in this format that an encoded update is as it came; null: it becomes another one.
const void* row_in(const Contribution& contribution, int format);

using Contributions = std::vector<Contribution>;

enum class Outcome { kKept, kStep, kIdle };  // waits; the model steps; the version moves on without a step

// How updates are read: once their norms are known; by the step's kernel, which finds the norm; or several in one
// pass, which adds them to a sum and finds out which of them are fit: updates or trained models. Nobody writes to still
// ones meanwhile.
enum class ReadMode { kMeasured, kReadOnce, kUpdates, kModels, kStillModels };

// The largest magnitude of an element. Below it all squares and all sums that occur are finite.
constexpr int32_t kLargestElementBits = 0x5d800000;  // of 2^60 in fp32
constexpr double kLargestElement = 0x1p60, kLargestSum = 0x1p120, kLargestMoment = 0x1p126, kLargestModel = 3.4028e38;
constexpr double kRounded = 1.01;   // what rounding to bf16, or to a format for the wire, makes larger, at most
constexpr double kHeaviest = 1e30;  // the largest weight for which fp32 sums and inverse weights stay finite

}  // namespace fastagg::engine
