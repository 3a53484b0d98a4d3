// Computes rows of the distillation loss (math/distill.h). Included by kernels.inl.
//
// A row is processed in pieces of kColumns elements. Each place in a piece, a lane, has its own sum over kBlock
// elements. The lanes' sums are then added in double, in a fixed order. So the bits do not depend on the vector width.
constexpr int64_t kColumns = 128;

template <typename T>
FASTAGG_FN double fold_lanes(const T* lanes) {
  double quads[kColumns / 4];
  for (int64_t q = 0; q < kColumns / 4; ++q)
    quads[q] = fold_quad(static_cast<double>(lanes[4 * q]), static_cast<double>(lanes[4 * q + 1]),
                         static_cast<double>(lanes[4 * q + 2]), static_cast<double>(lanes[4 * q + 3]));
  for (int64_t half = kColumns / 8; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) quads[i] += quads[i + half];
  return quads[0];
}

template <typename T>
FASTAGG_FN void raise(T& largest, T value) {
  largest = value > largest ? value : largest;
}

// Returns the largest value of scale*in. NaN is skipped here. The row's sum becomes NaN later.
template <typename T>
FASTAGG_FN T largest_of(const T* in, T scale, int64_t n) {
  T lanes[kColumns];
  for (int64_t l = 0; l < kColumns; ++l) lanes[l] = -__builtin_huge_val();
  int64_t k = 0;
  for (; k + kColumns <= n; k += kColumns)
    for (int64_t l = 0; l < kColumns; ++l) raise(lanes[l], scale * in[k + l]);
  for (int64_t l = 0; k + l < n; ++l) raise(lanes[l], scale * in[k + l]);
  for (int64_t half = kColumns / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; ++l) raise(lanes[l], lanes[l + half]);
  return lanes[0];
}

// Sets out = exp(t) with t = scale*in - largest, sums[0] = sum of out, and sums[1] = sum of weigh(out[i], t, i).
template <typename T, typename Weigh>
FASTAGG_FN void exponentials(const T* in, T scale, T largest, int64_t n, T* out, double* sums, Weigh weigh) {
  sums[0] = sums[1] = 0.0;
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t end = at + kBlock < n ? at + kBlock : n;
    T plain[kColumns] = {}, weighted[kColumns] = {};
    const auto add = [&](int64_t l, int64_t i) FASTAGG_INLINE {
      const T t = scale * in[i] - largest, e = exp_negative(t);
      plain[l] += e;
      weighted[l] += weigh(e, t, i);
      out[i] = e;
    };
    int64_t k = at;
    for (; k + kColumns <= end; k += kColumns) {
      FASTAGG_NO_CARRY
      for (int64_t l = 0; l < kColumns; ++l) add(l, k + l);
    }
    FASTAGG_NO_CARRY
    for (int64_t l = 0; l < end - k; ++l) add(l, k + l);
    sums[0] += fold_lanes(plain);
    sums[1] += fold_lanes(weighted);
  }
}

template <typename T>
void soft_targets_row(const T* logits, T scale, int64_t classes, T* probs, int64_t* label, double* entropy) {
  const T largest = largest_of(logits, scale, classes);
  *label = 0;
  while (*label + 1 < classes && !(scale * logits[*label] == largest)) ++*label;
  double sums[2];
  exponentials(logits, scale, largest, classes, probs, sums,
               [](T e, T t, int64_t) FASTAGG_INLINE { return weighed(e, t); });
  const T inverse = static_cast<T>(1.0 / sums[0]);
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < classes; ++i) probs[i] *= inverse;
  const double exact_entropy = log_positive(sums[0]) - sums[1] / sums[0];
  // if one class has nearly all the probability, rounding can make the entropy negative
  *entropy = exact_entropy < 0.0 ? 0.0 : exact_entropy;
}

// Returns the row's loss f, and writes gradient = df/dz * share for the logits z.
template <typename T>
double distill_row(const T* logits, const T* probs, int64_t label, double entropy, double alpha, double share,
                   int64_t classes, T* gradient) {
  const T largest = largest_of(logits, T(1), classes);
  double sums[2];
  exponentials(logits, T(1), largest, classes, gradient, sums,
               [=](T, T t, int64_t i) FASTAGG_INLINE { return weighed(probs[i], t); });
  const T inverse = static_cast<T>(1.0 / sums[0]), mix = static_cast<T>(alpha), part = static_cast<T>(share);
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < classes; ++i) gradient[i] = logit_gradient(gradient[i], inverse, probs[i], mix, part);
  gradient[label] -= static_cast<T>((1.0 - alpha) * share);
  const double t_label = static_cast<double>(logits[label]) - static_cast<double>(largest);
  return distillation(alpha, entropy, sums[1], log_positive(sums[0]), t_label);
}
