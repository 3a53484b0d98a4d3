// Combines rows element by element (math/combine.h). Included by kernels.inl.
//
// For a trimmed mean, up to kFewRows rows are sorted in registers. Otherwise rows are sorted in a buffer of at most 64
// KB, for a strip of elements at a time.

constexpr int64_t kFewRows = 16;

FASTAGG_FN void ask_for_rows(const Combination& c, int64_t i, int64_t n) {
  if (c.ahead == 0) return;
  for (int64_t k = 0; k < c.count; ++k)
    for (int64_t line = i + c.ahead; line < i + c.ahead + n && c.weights[k] != 0.0f; line += kLine)
      ahead_of(c.rows[k] + line);
}

template <int N, typename L>
FASTAGG_FN void trimmed_at(const Combination& c, int64_t i) {
  typename L::F values[N], sum{};
#pragma GCC unroll 16
  for (int k = 0; k < N; ++k) values[k] = c.weights[k] * L::load(c.rows[k] + i);
  sort<N, L>(values);
#pragma GCC unroll 16
  for (int k = 0; k < N; ++k)
    if (k >= c.cut && k < N - c.cut) sum = sum + values[k];
  L::store(sum / static_cast<float>(N - 2 * c.cut), c.out + i);
}

template <int N>
void trimmed_few(const Combination& combination) {
  const Combination c = combination;  // a copy, so that the compiler knows that no store changes it
  int64_t i = 0;
  for (; i + kStrip <= c.n; i += kStrip) {
    ask_for_rows(c, i, kStrip);
    for (int64_t k = i; k < i + kStrip; k += kFloats) trimmed_at<N, Simd>(c, k);
  }
  for (; i < c.n; ++i) trimmed_at<N, ScalarLanes>(c, i);
}

template <int N = kFewRows>
FASTAGG_FN void trimmed_up_to(const Combination& c) {
  if constexpr (N > 1)
    if (c.count < N) return trimmed_up_to<N - 1>(c);
  trimmed_few<N>(c);
}

// Sorts the values of each element, for a strip of elements at a time. Stores finish(values, width) for every vector of
// elements. The k-th values of these elements, in sorted order, are at values + k*width.
template <typename Finish>
FASTAGG_FN void for_sorted(const Combination& c, Finish finish) {
  alignas(64) float values[kMostCombined * 16];
  alignas(64) float numbers[kStrip];
  const int64_t width = c.count * kStrip <= kMostCombined * 16 ? kStrip : 16;
  for (int64_t i = 0; i < c.n; i += width) {
    const int64_t n = i + width <= c.n ? width : c.n - i;
    ask_for_rows(c, i, n);
    for (int64_t k = 0; k < c.count; ++k) {
      const float* const row = c.rows[k] + i;
      float* const to = values + k * width;
      const float weight = c.weights[k];
      for (int64_t l = 0; l < n; ++l) to[l] = weight * row[l];
      for (int64_t l = n; l < width; ++l) to[l] = 0.0f;
    }
    sorting_network(c.count, [&](int64_t first, int64_t second) FASTAGG_INLINE {
      float *const a = values + first * width, *const b = values + second * width;
      for (int64_t l = 0; l < width; l += kFloats) {
        F low = Simd::load(a + l), high = Simd::load(b + l);
        exchange<Simd>(low, high);
        Simd::store(low, a + l), Simd::store(high, b + l);
      }
    });
    for (int64_t l = 0; l < width; l += kFloats) Simd::store(finish(values + l, width), numbers + l);
    memcpy(c.out + i, numbers, static_cast<size_t>(n) * sizeof(float));
  }
}

void combine_trimmed(const Combination& c) {
  if (c.count <= kFewRows) return trimmed_up_to(c);
  for_sorted(c, [&](const float* values, int64_t width) FASTAGG_INLINE {
    return trimmed_mean<F>(c.count, c.cut, [=](int64_t k) FASTAGG_INLINE { return Simd::load(values + k * width); });
  });
}

void combine_around(const Combination& c) {
  for_sorted(c, [&](const float* values, int64_t width) FASTAGG_INLINE {
    return mean_around<F>(
        c.count, c.cut, [=](int64_t k) FASTAGG_INLINE { return Simd::load(values + k * width); },
        [](auto holds, F yes, F no) FASTAGG_INLINE { return chosen((I)holds, yes, no); });
  });
}

// Computes the sum of the weighted rows. Rows of weight zero are not read.
void combine_mean(const Combination& combination) {
  const Combination c = combination;
  int64_t i = 0;
  for (; i + kStrip <= c.n; i += kStrip) {
    ask_for_rows(c, i, kStrip);
    F sums[kStrip / kFloats] = {};
    for (int64_t k = 0; k < c.count; ++k)
      if (c.weights[k] != 0.0f)
#pragma GCC unroll 16
        for (int64_t l = 0; l < kStrip / kFloats; ++l)
          sums[l] = sums[l] + c.weights[k] * Simd::load(c.rows[k] + i + l * kFloats);
#pragma GCC unroll 16
    for (int64_t l = 0; l < kStrip / kFloats; ++l) Simd::store(sums[l], c.out + i + l * kFloats);
  }
  for (; i < c.n; ++i) {
    float sum = 0.0f;
    for (int64_t k = 0; k < c.count; ++k)
      if (c.weights[k] != 0.0f) sum = sum + c.weights[k] * c.rows[k][i];
    c.out[i] = sum;
  }
}

// -- sums over pairs of rows

constexpr int64_t kHeldSums = kSumLanes / kDoubles;  // how many vectors hold the lanes of a sum
// The number of rows, and of columns, in a tile of pairs. The sums of a tile's pairs stay in registers.
constexpr int64_t kTile = kFloats == 16 ? 4 : 2;

// Computes a sum over n elements for every pair of a tile. The sum is of products, or with `Apart` of squared
// differences. Products of floats are exact in double. Every processor adds in the same order.
template <bool Apart>
FASTAGG_FN void pairs_of(const Pairs& p, const int64_t (&rows)[kTile], const int64_t (&columns)[kTile],
                         double (&totals)[kTile][kTile]) {
  const auto at = [&](int64_t row, int64_t i)
                      FASTAGG_INLINE { return widened(p.weights[row] * vector_at<HalfF>(p.rows[row] + i)); };
  D sums[kTile][kTile][kHeldSums] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= p.n; i += kSumLanes)
#pragma GCC unroll 4
    for (int64_t h = 0; h < kHeldSums; ++h) {
      D a[kTile], b[kTile];
#pragma GCC unroll 4
      for (int64_t k = 0; k < kTile; ++k) a[k] = at(rows[k], i + h * kDoubles), b[k] = at(columns[k], i + h * kDoubles);
#pragma GCC unroll 4
      for (int64_t r = 0; r < kTile; ++r)
#pragma GCC unroll 4
        for (int64_t c = 0; c < kTile; ++c) {
          if constexpr (Apart) {
            const D difference = a[r] - b[c];
            sums[r][c][h] = sums[r][c][h] + difference * difference;
          } else {
            sums[r][c][h] = add_product(sums[r][c][h], a[r], b[c]);
          }
        }
    }
  for (int64_t r = 0; r < kTile; ++r)
    for (int64_t c = 0; c < kTile; ++c) {
      double lanes[kSumLanes];
      for (int64_t h = 0; h < kHeldSums; ++h) put_vector(sums[r][c][h], lanes + h * kDoubles);
      for (int64_t l = i; l < p.n; ++l) {
        const double a = static_cast<double>(p.weights[rows[r]] * p.rows[rows[r]][l]);
        const double b = static_cast<double>(p.weights[columns[c]] * p.rows[columns[c]][l]);
        lanes[l - i] += Apart ? (a - b) * (a - b) : a * b;
      }
      totals[r][c] =
          fold_quad(lanes[0], lanes[1], lanes[2], lanes[3]) + fold_quad(lanes[4], lanes[5], lanes[6], lanes[7]);
    }
}

template <bool Apart>
FASTAGG_FN void for_tiles(const Pairs& p) {
  for (int64_t row = 0; row < p.count; row += kTile)
    for (int64_t column = row; column < p.count; column += kTile) {
      int64_t rows[kTile], columns[kTile];
      bool wanted = false;
      for (int64_t k = 0; k < kTile; ++k) {
        rows[k] = row + k < p.count ? row + k : p.count - 1;
        columns[k] = column + k < p.count ? column + k : p.count - 1;
      }
      for (int64_t r = row; r < row + kTile && r < p.count; ++r)
        for (int64_t c = column; c < column + kTile && c < p.count; ++c) wanted = wanted || p.wants(r, c);
      if (!wanted) continue;
      double totals[kTile][kTile];
      pairs_of<Apart>(p, rows, columns, totals);
      for (int64_t r = row; r < row + kTile && r < p.count; ++r)
        for (int64_t c = column; c < column + kTile && c < p.count; ++c)
          if (p.wants(r, c)) p.sums[r * p.count + c] += totals[r - row][c - column];
    }
}

void add_pairs(const Pairs& p) { p.apart ? for_tiles<true>(p) : for_tiles<false>(p); }
