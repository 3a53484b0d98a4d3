// FedEcho's distillation loss over a batch of rows (math/distill.h). T is float, or double for gradient checks.
#pragma once

#include <cstdint>

namespace fastagg::cpu {

// Teachers, [rows, classes]: the probabilities of scale*logits, their argmax (the first of equal ones) and entropy in
// nats.
template <typename T>
void soft_targets(const T* logits, double scale, int64_t rows, int64_t classes, T* probs, int64_t* labels,
                  double* entropy);

// The mean loss over the rows that count, and its gradient with respect to the student's logits [rows, classes]. Row r
// of the student belongs to the teacher's row `which[r]`, or to row r if `which` is null. A row with the label kIgnored
// does not count. Throws std::out_of_range, with nothing written, if `which` names a row outside `teachers` or a label
// is not a class.
struct Distilled {
  double loss;
  double alpha;
};
template <typename T>
Distilled distill(const T* logits, const T* probs, const int64_t* labels, const double* entropy, const int64_t* which,
                  int64_t teachers, int64_t rows, int64_t classes, double alpha_min, double alpha_max, T* gradient);

}  // namespace fastagg::cpu
