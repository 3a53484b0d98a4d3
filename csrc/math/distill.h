// FedEcho's distillation loss (Eqs. 3 and 4 of the paper), one row at a time. y are the teachers' logits and z the
// student's logits of a row, for C classes. p are the teachers' probabilities, with the weight alpha. The label has the
// weight 1 - alpha.
//
//   p = softmax(y);  H = -sum p log p;  label = argmax y
//   f = alpha*KL(p || softmax(z)) + (1 - alpha)*(-log softmax(z)[label])
//   df/dz = softmax(z) - alpha*p - (1 - alpha)*onehot(label)
//
// With t = z - max z and S = sum exp t:  KL = -H - sum p*t + log S;  -log softmax(z)[label] = log S - t[label].
// So no exponential overflows, and no element needs a logarithm.
//
// Bytes of memory traffic per element in fp32: 8 for the targets (y is read, p is written), and 12 for loss and
// gradient (z and p are read, the gradient is written). This holds if a row fits in the cache.
#pragma once

#include "exponential.h"
#include "reduce.h"

namespace fastagg {

constexpr int64_t kIgnored = -100;  // the label of rows that the loss ignores, as in torch

// Returns p*t if p > 0, otherwise 0. So the result is not NaN for the probability 0 and t = -infinity.
template <typename T>
FASTAGG_FN T weighed(T p, T t) {
  return p > T(0) ? p * t : T(0);
}

template <typename T>
FASTAGG_FN T logit_gradient(T e, T inverse, T p, T alpha, T share) {
  return (e * inverse - alpha * p) * share;
}

// Returns alpha for a batch (Eq. 4): Hhat*alpha_max + (1 - Hhat)*alpha_min. Hhat is the rows' mean H divided by log C.
// With one class, Hhat is 0.
FASTAGG_FN double mixing(double mean_entropy, int64_t classes, double alpha_min, double alpha_max) {
  const double relative = classes > 1 ? mean_entropy / log_positive(static_cast<double>(classes)) : 0.0;
  return relative * alpha_max + (1.0 - relative) * alpha_min;
}

FASTAGG_FN double distillation(double alpha, double entropy, double weighed_t, double log_sum, double t_label) {
  return alpha * ((log_sum - weighed_t) - entropy) + (1.0 - alpha) * (log_sum - t_label);
}

}  // namespace fastagg
