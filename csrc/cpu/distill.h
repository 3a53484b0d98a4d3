// FedEcho's distillation loss over a batch of rows (math/distill.h). T is float; double is for gradient checks.
#pragma once

#include <cstdint>

namespace fastagg::cpu {

// Teachers, [rows, classes]: probabilities of scale*logits, their argmax (the first of equals) and entropy in nats.
template <typename T>
void soft_targets(const T* logits, double scale, int64_t rows, int64_t classes, T* probs, int64_t* labels,
                  double* entropy);

// Mean loss over the rows that count, and its gradient with respect to the student's logits [rows, classes].
// Row r of the student has the teacher's row `which[r]`, or r where `which` is null; a label of kIgnored leaves
// a row out. std::out_of_range: `which` names none of the `teachers`, or a label no class; nothing was written.
struct Distilled {
  double loss;
  double alpha;
};
template <typename T>
Distilled distill(const T* logits, const T* probs, const int64_t* labels, const double* entropy, const int64_t* which,
                  int64_t teachers, int64_t rows, int64_t classes, double alpha_min, double alpha_max, T* gradient);

}  // namespace fastagg::cpu
