// Trained models, or their differences, folded into a running sum; what is subtracted is never written.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "step.h"

namespace fastagg::cpu {

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
// finite[k]: whether every element of model_k - base_k is finite, `true` to begin with. It costs no read of its own.
//
// Bytes per parameter: 4 for each model, 4 for each base that is not the one before, 8 for the sum (4 if it is new). A
// sum beside acc is written past the cache: read and write in place would move as much, but could not be taken back.
void fold(const std::vector<Trained>& trained, const float* acc, float* acc_out,
          std::vector<std::atomic<bool>>& finite);

}  // namespace fastagg::cpu
