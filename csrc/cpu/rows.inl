// Kernels on blocks of clients' rows: random bits, reading, writing, and the sum over clients. Included by kernels.inl.
//
// The kernels are loops over pairs of elements (math/rows.h). The compiler vectorises these loops.

FASTAGG_FN W wide(uint64_t word) { return W{} + word; }

// Computes philox() of math/philox.h for kDoubles counters at once. Each 64-bit lane has a 32-bit word, so one widening
// multiplication gives both halves of a product. The upper half of a lane may have any value, because the next
// multiplication reads only the lower half.
FASTAGG_FN void philox_lanes(W& a, W& b, W& c, W& d, uint32_t key0, uint32_t key1) {
#pragma GCC unroll 7
  for (int round = 0; round < 7; ++round) {
    const W product0 = widening_product(wide(0xD2511F53u), a);
    const W product1 = widening_product(wide(0xCD9E8D57u), c);
    a = (product1 >> 32) ^ b ^ wide(key0);
    b = product1;
    c = (product0 >> 32) ^ d ^ wide(key1);
    d = product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// Makes `Calls` calls of Philox. words[w*Calls + j] is word w of call j. Prefetches memory at `ask`, unless null.
template <int64_t Calls>
FASTAGG_FN void philox_words(const RandomKey& key, int64_t block, uint32_t* words, const float* ask) {
  const uint64_t low = static_cast<uint32_t>(block), high = static_cast<uint64_t>(block) >> 32 << 7;
  const uint32_t key0 = static_cast<uint32_t>(key.seed);
  const uint32_t key1 = static_cast<uint32_t>(key.seed >> 32) ^ static_cast<uint32_t>(key.step >> 32);
  W even{};
  for (int64_t lane = 0; lane < kDoubles; ++lane) even[lane] = high | static_cast<uint64_t>(2 * lane);
  for (int64_t call = 0; call < Calls; call += 2 * kDoubles) {
    if (ask != nullptr)
      for (int64_t line = 0; line < kDoubles; ++line) ahead_of(ask + (call / 2 + line) * kLine);
    W a[2], b[2], c[2], d[2];  // for even and for odd calls
    for (int64_t odd = 0; odd < 2; ++odd) {
      a[odd] = wide(low);
      b[odd] = even + wide(static_cast<uint64_t>(call + odd));
      c[odd] = wide(key.client);
      d[odd] = wide(static_cast<uint32_t>(key.step));
      philox_lanes(a[odd], b[odd], c[odd], d[odd], key0, key1);
    }
    const W mask = wide(0xffffffffu);
    const W joined[4] = {(a[0] & mask) | (a[1] << 32), (b[0] & mask) | (b[1] << 32), (c[0] & mask) | (c[1] << 32),
                         (d[0] & mask) | (d[1] << 32)};
    for (int64_t w = 0; w < 4; ++w) memcpy(words + w * Calls + call, &joined[w], sizeof joined[w]);
  }
}

// Computes the random words of a block of 1,024. Element i uses half of word i/256*128 + i%128: the lower half in the
// first half of a scale block, otherwise the upper half. math/philox.h uses the same order.
void random_words_block(const RandomKey& key, int64_t block, uint32_t* words, const float* ask) {
  philox_words<kCalls>(key, block, words, ask);
}

static_assert(kHalf == kCalls, "a scale block shares one word of every call");

// Returns the largest magnitude in one scale block, at most `limit`. Compares bits, because non-negative floats and
// their bits have the same order, and NaN's are larger.
FASTAGG_FN float absmax(const float* in, uint32_t limit) {
  int32_t largest = 0;
  for (int64_t i = 0; i < kScaleBlock; ++i) {
    const int32_t pattern = static_cast<int32_t>(bits_of(in[i]) & 0x7fffffffu);
    largest = pattern > largest ? pattern : largest;
  }
  const uint32_t magnitude = static_cast<uint32_t>(largest);
  return float_from_bits(magnitude < limit ? magnitude : limit);
}

// Computes the scales of gain*in, and their inverses, for a whole block before any value is rounded to a code. So the
// divisions do not wait for the rounding of earlier scale blocks. `levels`: the format's largest code. Only scales are
// limited: with a limited scale every code stands for a number within the limit. In floats, |gain| times the largest
// |in[i]| equals the largest |gain*in[i]|, because float rounding keeps the order.
FASTAGG_FN void find_scales(const RowChange& change, float levels, float* scales, float* inverses) {
  const float gain = change.gain;
  const float size = gain < 0.0f ? -gain : gain;
  for (int64_t b = 0; b < change.n / kScaleBlock; ++b) {
    scales[b] = scale_of(size * absmax(change.in + b * kScaleBlock, change.limit), levels);
    inverses[b] = 1.0f / scales[b];
  }
}

// Prefetches a scale block. A loop over pairs alternates between the two halves of a scale block. No processor's
// prefetcher detects that. So the block is prefetched whatever the tuning says. This saves ACE with int8 rows a third
// of its time on Zen 4.
FASTAGG_FN void ask_for_halves(const float* block) {
  for (int64_t line = 0; line < kScaleBlock; line += kLine) ahead_of(block + line);
}

template <typename Format>
FASTAGG_FN typename Format::Code* codes_of(const Row& row, int64_t block) {
  return static_cast<typename Format::Code*>(row.data) + block * Format::kPlanes * kHalf;
}

FASTAGG_FN float scale_at(const Row& row, int64_t block) { return row.scales[block]; }

template <typename Format>
FASTAGG_FN void ask_for_codes(const typename Format::Code* codes, int64_t ahead) {
  constexpr int64_t kBytes = kScaleBlock * Format::kBits / 8;
  const char* from = reinterpret_cast<const char*>(codes) + ahead * Format::kBits / 8;
  for (int64_t at = 0; at < kBytes; at += 64) ahead_of(from + at);
}

// Stores a block of a row. With `TensorSums`, also updates the sum over clients, as RowChange describes. One pass for
// row and sum keeps codes in registers, and saves a fifth of the time. Old, Termed: whether there are an old row and a
// term.
template <typename Format, bool TensorSums, bool Old, bool Termed>
FASTAGG_FN void change_of(const RowChange& change) {
  constexpr bool kScaled = Format::kLevels > 0;
  float scales[kBlock / kScaleBlock], inverses[kBlock / kScaleBlock];
  if constexpr (kScaled) find_scales(change, static_cast<float>(Format::kLevels), scales, inverses);
  const float gain = change.gain, entering = change.entering, leaving = change.leaving;
  const float dither = change.dither, weight = change.term_weight;
  for (int64_t b = 0; b < change.n; b += kScaleBlock) {
    const int64_t index = b / kScaleBlock;
    const float scale = kScaled ? scales[index] : 1.0f, inverse = kScaled ? inverses[index] : 1.0f;
    const float old_scale = Old && kScaled ? scale_at(change.read, index) : 1.0f;
    const float term_scale = Termed && kScaled ? scale_at(change.term, index) : 1.0f;
    if constexpr (kScaled) change.write.scales[index] = scale;
    const float* in = change.in + b;
    const uint32_t* words = change.words + index * kCalls;
    const typename Format::Code* read = Old ? codes_of<Format>(change.read, index) : nullptr;
    const typename Format::Code* term = Termed ? codes_of<Format>(change.term, index) : nullptr;
    typename Format::Code* write = codes_of<Format>(change.write, index);
    float* sum = TensorSums ? change.sum + b : nullptr;
    if constexpr (TensorSums) ask_for_halves(sum + change.ahead);
    if (change.ahead != 0) {
      for (int64_t line = 0; line < kScaleBlock; line += kLine) ahead_of(change.ask + b + line);
      if constexpr (Old) ask_for_codes<Format>(read, change.ahead);
      if constexpr (Termed) ask_for_codes<Format>(term, change.ahead);
    }
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < kHalf; ++i) {
      int32_t old_first = 0, old_second = 0, other_first = 0, other_second = 0;
      if constexpr (Old) Format::split(read, i, kHalf, old_first, old_second);
      if constexpr (Termed) Format::split(term, i, kHalf, other_first, other_second);
      float first = gain * in[i], second = gain * in[i + kHalf];
      if constexpr (kScaled) first *= inverse, second *= inverse;
      const uint32_t word = Format::kRandom ? words[i] : 0u;
      const int32_t put_first = Format::put(first, word & 0xffffu), put_second = Format::put(second, word >> 16);
      Format::join(write, i, kHalf, put_first, put_second);
      if constexpr (TensorSums) {
        const float left_first = Old ? Format::value(old_first, old_scale) : 0.0f;
        const float left_second = Old ? Format::value(old_second, old_scale) : 0.0f;
        const float kept_first = Format::kept(put_first, scale), kept_second = Format::kept(put_second, scale);
        float low = exchanged<Scalar>(sum[i], kept_first, entering, left_first, leaving, dither);
        float high = exchanged<Scalar>(sum[i + kHalf], kept_second, entering, left_second, leaving, dither);
        if constexpr (Termed) {
          low = with_term(low, Format::value(other_first, term_scale), weight);
          high = with_term(high, Format::value(other_second, term_scale), weight);
        }
        sum[i] = low;
        sum[i + kHalf] = high;
      }
    }
  }
}

template <typename Format>
void change_block(const RowChange& change) {
  const bool old = change.read.data != nullptr, termed = change.term.data != nullptr;
  const auto run = change.sum == nullptr ? change_of<Format, false, false, false>
                   : old    ? termed ? change_of<Format, true, true, true> : change_of<Format, true, true, false>
                   : termed ? change_of<Format, true, false, true>
                            : change_of<Format, true, false, false>;
  run(change);
}

// Calls visit(i, value) for all n elements of a row's block. Prefetches `sum`, unless null.
template <typename Format, typename Visit>
FASTAGG_FN void for_each_value(const Row& row, const float* sum, int64_t n, int64_t ahead, Visit visit) {
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const typename Format::Code* codes = codes_of<Format>(row, b / kScaleBlock);
    const float scale = Format::kLevels > 0 ? scale_at(row, b / kScaleBlock) : 1.0f;
    if (sum != nullptr) ask_for_halves(sum + b);
    if (ahead != 0) ask_for_codes<Format>(codes, ahead);
    const auto pair = [=](int64_t i, float& first, float& second) FASTAGG_INLINE {
      int32_t code, other;
      Format::split(codes, i, kHalf, code, other);
      first = Format::value(code, scale);
      second = Format::value(other, scale);
    };
    if (n - b >= kScaleBlock) {
      FASTAGG_NO_CARRY
      for (int64_t i = 0; i < kHalf; ++i) {
        float first, second;
        pair(i, first, second);
        visit(b + i, first);
        visit(b + i + kHalf, second);
      }
    } else {
      for (int64_t i = 0; i < kHalf && b + i < n; ++i) {
        float first, second;
        pair(i, first, second);
        visit(b + i, first);
        if (b + i + kHalf < n) visit(b + i + kHalf, second);
      }
    }
  }
}

template <typename Format>
void decode_block(Row row, float* out, int64_t n, int64_t ahead) {
  for_each_value<Format>(row, nullptr, n, ahead, [=](int64_t i, float value) FASTAGG_INLINE { out[i] = value; });
}

template <typename Format>
void add_row_block(float* sum, Row row, float weight, int64_t n, int64_t ahead) {
  for_each_value<Format>(row, sum, n, ahead,
                         [=](int64_t i, float value) FASTAGG_INLINE { sum[i] = with_term(sum[i], value, weight); });
}

template <typename Format>
void add_exactly_block(double* total, Row row, float weight, int64_t n, int64_t ahead) {
  for_each_value<Format>(row, nullptr, n, ahead, [=](int64_t i, float value) FASTAGG_INLINE {
    total[i] += static_cast<double>(weight * value);
  });
}

void settle_block(const double* total, float* sum, int64_t n) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<float>(total[i]);
}
