// FedEcho's distillation loss (its Eqs. 3 and 4), row by row. y are teacher logits, z student logits, C classes:
//
//   p = softmax(y);  H = -sum p log p;  label = argmax y
//   f = alpha*KL(p || softmax(z)) + (1 - alpha)*(-log softmax(z)[label])
//   df/dz = softmax(z) - alpha*p - (1 - alpha)*onehot(label)
//
// With t = z - max z and S = sum exp t:  KL = -H - sum p*t + log S;  -log softmax(z)[label] = log S - t[label].
// Nothing overflows, and no logarithm is taken per element.
//
// Bytes per element: targets 8 (y read, p written); loss and gradient 12 (z and p read, the gradient written), because
// a row stays in the cache.
#pragma once

#include "exponential.h"
#include "reduce.h"

namespace fastagg {

constexpr int64_t kIgnored = -100;  // the label of a row that is left out, as in torch

// Returns p*t, where a probability of zero gives zero even if t is infinite.
template <typename T>
FASTAGG_FN T weighed(T p, T t) {
  return p > T(0) ? p * t : T(0);
}

template <typename T>
FASTAGG_FN T logit_gradient(T e, T inverse, T p, T alpha, T share) {
  return (e * inverse - alpha * p) * share;
}

// Eq. 4 over a batch: alpha = Hhat*alpha_max + (1 - Hhat)*alpha_min with Hhat = mean H / log C, or 0 with one class.
FASTAGG_FN double mixing(double mean_entropy, int64_t classes, double alpha_min, double alpha_max) {
  const double relative = classes > 1 ? mean_entropy / log_positive(static_cast<double>(classes)) : 0.0;
  return relative * alpha_max + (1.0 - relative) * alpha_min;
}

FASTAGG_FN double distillation(double alpha, double entropy, double weighed_t, double log_sum, double t_label) {
  return alpha * ((log_sum - weighed_t) - entropy) + (1.0 - alpha) * (log_sum - t_label);
}

}  // namespace fastagg
