// Computes sums of squares and products over one strand, in double, in math/reduce.h's order. The lanes stay in
// registers. Included by kernels.inl.

FASTAGG_FN double total_of_lanes(const double* lanes) {
  double quads[kQuads];
  for (int64_t q = 0; q < kQuads; ++q)
    quads[q] = fold_quad(lanes[4 * q], lanes[4 * q + 1], lanes[4 * q + 2], lanes[4 * q + 3]);
  for (int64_t half = kQuads / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) quads[i] += quads[i + half];
  return quads[0];
}

// Computes `TensorSums` sums over n elements. n must be a multiple of 128. add(i, sums) must add the products of
// elements i..i+kDoubles-1 to each sum. The vectors `streams` are prefetched.
template <int TensorSums, typename Add, typename... Stream>
FASTAGG_FN void sums_of(double* out, int64_t n, int64_t ahead, Add add, const Stream*... streams) {
  constexpr int64_t kHeld = kLanes / kDoubles;
  D sums[kHeld][TensorSums] = {};
  if (ahead == 0) {
    for (int64_t k = 0; k < n; k += kLanes)
#pragma GCC unroll 16
      for (int64_t l = 0; l < kHeld; ++l) add(k + l * kDoubles, sums[l]);
  } else {
    for (int64_t k = 0; k < n; k += kLanes) {
      for (int64_t line = 0; line < kLanes; line += kLine) (ahead_of(streams + (k + ahead + line)), ...);
#pragma GCC unroll 16
      for (int64_t l = 0; l < kHeld; ++l) add(k + l * kDoubles, sums[l]);
    }
  }
  double lanes[kLanes];
  for (int s = 0; s < TensorSums; ++s) {
    for (int64_t l = 0; l < kHeld; ++l) put_vector(sums[l][s], lanes + l * kDoubles);
    out[s] = total_of_lanes(lanes);
  }
}

void squares_strand(const float* update, int64_t n, int64_t ahead, double* out) {
  const auto add = [=](int64_t i, D(&sums)[1]) FASTAGG_INLINE {
    const D u = widened(vector_at<HalfF>(update + i));
    sums[0] = add_product(sums[0], u, u);
  };
  sums_of<1>(out, n, ahead, add, update);
}

void copy_squares_strand(const float* update, float* copy, int64_t n, int64_t ahead, double* out) {
  const auto add = [=](int64_t i, D(&sums)[1]) FASTAGG_INLINE {
    const HalfF lanes = vector_at<HalfF>(update + i);
    put_vector(lanes, copy + i);
    const D u = widened(lanes);
    sums[0] = add_product(sums[0], u, u);
  };
  sums_of<1>(out, n, ahead, add, update);
}

void limit_block(const float* in, uint32_t limit, float* out, int64_t n, int64_t ahead) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if (ahead != 0)
      for (int64_t line = 0; line < kLanes; line += kLine) ahead_of(in + (i + ahead + line));
    for (int64_t l = 0; l < kLanes; l += kFloats)
      put_vector(limited<Simd>(vector_at<F>(in + i + l), limit), out + i + l);
  }
  for (; i < n; ++i) out[i] = limited<ScalarLanes>(in[i], limit);
}

// Returns the sum of squares of a top-k's elements in the group that starts at `begin`. Elements not stored are zero.
template <typename Codec>
double squares_topk(const Wire& wire, int64_t begin) {
  double lanes[kGroupStrands * kLanes] = {};
  const int64_t first = first_above(wire.indices, wire.count, begin - 1);
  const int64_t last = first_above(wire.indices, wire.count, begin + kGroup - 1);
  for (int64_t k = first; k < last; ++k) {
    const double value = static_cast<double>(value_at<Codec>(wire.codes, wire.scales, k));
    const int64_t i = wire.indices[k] - begin;
    lanes[i / kStrand * kLanes + i % kLanes] += value * value;
  }
  double total = 0.0;
  for (int64_t strand = 0; strand < kGroupStrands; ++strand) total += total_of_lanes(lanes + strand * kLanes);
  return total;
}

template <bool Inner>
FASTAGG_FN void apart(const float* update, const float* x, const float* base, int64_t n, int64_t ahead, double* out) {
  constexpr int kUsed = Inner ? 3 : 2;
  const auto add = [=](int64_t i, D(&sums)[kUsed]) FASTAGG_INLINE {
    const D u = widened(vector_at<HalfF>(update + i));
    const D moved = widened(vector_at<HalfF>(x + i) - vector_at<HalfF>(base + i));
    sums[0] = add_product(sums[0], u, u);
    sums[1] = add_product(sums[1], moved, moved);
    if constexpr (Inner) sums[2] = add_product(sums[2], moved, u);
  };
  sums_of<kUsed>(out, n, ahead, add, update, x, base);
}

void apart_strand(const float* update, const float* x, const float* base, bool inner, int64_t n, int64_t ahead,
                  double* out) {
  inner ? apart<true>(update, x, base, n, ahead, out) : apart<false>(update, x, base, n, ahead, out);
}
