// Block kernels of the client caches: random bits, encoding and decoding rows, running sums. Included by kernels.inl,
// inside its namespace.

// Lanes of 64 bits that hold 32-bit words: one widening multiplication gives both halves of a product, and what is left
// in the upper halves never matters, since the next multiplication reads the lower ones only.
constexpr int64_t kWordLanes = kWidth;
typedef uint64_t Words __attribute__((vector_size(8 * kWordLanes)));

FASTAGG_FN Words widening_product(Words x, Words y) {
#if defined(__AVX512F__)
  // The masked form: the plain one is built on an undefined value, which GCC 12 warns about.
  return reinterpret_cast<Words>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(y)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_mul_epu32(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(y)));
#elif defined(__SSE2__)
  return reinterpret_cast<Words>(_mm_mul_epu32(reinterpret_cast<__m128i>(x), reinterpret_cast<__m128i>(y)));
#else
  return (x & 0xffffffffu) * (y & 0xffffffffu);
#endif
}

FASTAGG_FN Words broadcast(uint64_t word) { return Words{} + word; }

// math/philox.h's philox(), on kWordLanes counters at once.
FASTAGG_FN void philox_lanes(Words& a, Words& b, Words& c, Words& d, uint32_t key0, uint32_t key1) {
#pragma GCC unroll 7
  for (int round = 0; round < 7; ++round) {
    const Words product0 = widening_product(broadcast(0xD2511F53u), a);
    const Words product1 = widening_product(broadcast(0xCD9E8D57u), c);
    a = (product1 >> 32) ^ b ^ broadcast(key0);
    b = product1;
    c = (product0 >> 32) ^ d ^ broadcast(key1);
    d = product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// words[w][j]: word w of call j, for `Calls` calls.
template <int64_t Calls>
FASTAGG_FN void philox_words(const RandomKey& key, int64_t block, uint32_t* words, const float* ask) {
  const uint64_t low = static_cast<uint32_t>(block), high = static_cast<uint64_t>(block) >> 32 << 7;
  const uint32_t key0 = static_cast<uint32_t>(key.seed);
  const uint32_t key1 = static_cast<uint32_t>(key.seed >> 32) ^ static_cast<uint32_t>(key.step >> 32);
  Words even{};
  for (int64_t lane = 0; lane < kWordLanes; ++lane) even[lane] = high | static_cast<uint64_t>(2 * lane);
  for (int64_t call = 0; call < Calls; call += 2 * kWordLanes) {
    for (int64_t line = 0; line < kWordLanes; ++line) ahead(ask + (call / 2 + line) * kLine);
    Words a[2], b[2], c[2], d[2];  // even and odd calls
    for (int64_t odd = 0; odd < 2; ++odd) {
      a[odd] = broadcast(low);
      b[odd] = even + broadcast(static_cast<uint64_t>(call + odd));
      c[odd] = broadcast(key.client);
      d[odd] = broadcast(static_cast<uint32_t>(key.step));
      philox_lanes(a[odd], b[odd], c[odd], d[odd], key0, key1);
    }
    const Words mask = broadcast(0xffffffffu);
    const Words joined[4] = {(a[0] & mask) | (a[1] << 32), (b[0] & mask) | (b[1] << 32), (c[0] & mask) | (c[1] << 32),
                             (d[0] & mask) | (d[1] << 32)};
    for (int64_t w = 0; w < 4; ++w) memcpy(words + w * Calls + call, &joined[w], sizeof joined[w]);
  }
}

// Element i has the lower half of words[i/256][i%128] in the first 128 elements of a scale block and the upper half in
// the second, as math/philox.h numbers them.
void random_words_block(const RandomKey& key, int64_t block, uint32_t* words, const float* ask) {
  philox_words<kCalls>(key, block, words, ask);
}

// The largest magnitude of one scale block. Bit patterns of non-negative floats order like the floats, and an integer
// maximum may be taken in any order.
FASTAGG_FN float absmax(const float* in) {
  int32_t most = 0;
  for (int64_t i = 0; i < kScaleBlock; ++i) {
    int32_t pattern;
    memcpy(&pattern, in + i, sizeof pattern);
    pattern &= 0x7fffffff;
    most = pattern > most ? pattern : most;
  }
  return float_from_bits(static_cast<uint32_t>(most));
}

void encode_float32(const float* in, const uint32_t*, RowBlock row, int64_t n, const float*) {
  memcpy(row.data, in, static_cast<size_t>(n) * sizeof(float));
}

void decode_float32(RowBlock row, float* out, int64_t n) {
  const float* in = static_cast<const float*>(row.data);
  sweep(n, [=](int64_t i) FASTAGG_INLINE { out[i] = in[i]; }, in);
}

constexpr int64_t kHalf = kScaleBlock / 2;
static_assert(kHalf == kCalls, "a scale block shares one word of every call");

FASTAGG_FN uint32_t lower(uint32_t word) { return word & 0xffffu; }
FASTAGG_FN uint32_t upper(uint32_t word) { return word >> 16; }

void encode_bf16(const float* in, const uint32_t* words, RowBlock row, int64_t n, const float* ask) {
  uint16_t* out = static_cast<uint16_t*>(row.data);
  for (int64_t b = 0; b < n; b += kScaleBlock, words += kCalls) {
    for (int64_t line = 0; line < kScaleBlock; line += kLine) ahead(ask + b + line);
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < kHalf; ++i) {
      out[b + i] = narrow_bf16(in[b + i], lower(words[i]));
      out[b + i + kHalf] = narrow_bf16(in[b + i + kHalf], upper(words[i]));
    }
  }
}

void decode_bf16(RowBlock row, float* out, int64_t n) {
  widen_bf16_block(static_cast<const uint16_t*>(row.data), out, n);
}

// All scales of a block first: their divisions wait for each other's maxima, not for the rounding in between.
FASTAGG_FN void find_scales(const float* in, float levels, float* scales, float* inverses, int64_t n) {
  for (int64_t b = 0; b < n / kScaleBlock; ++b) {
    scales[b] = scale_of(absmax(in + b * kScaleBlock), levels);
    inverses[b] = 1.0f / scales[b];
  }
}

void encode_int8(const float* in, const uint32_t* words, RowBlock row, int64_t n, const float* ask) {
  int8_t* out = static_cast<int8_t*>(row.data);
  float inverses[kBlock / kScaleBlock];
  find_scales(in, 127.0f, row.scales, inverses, n);
  for (int64_t b = 0; b < n; b += kScaleBlock, words += kCalls) {
    const float inverse = inverses[b / kScaleBlock];
    for (int64_t line = 0; line < kScaleBlock; line += kLine) ahead(ask + b + line);
    const float* first = in + b;
    int8_t* stored = out + b;
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < kHalf; ++i) {
      stored[i] = static_cast<int8_t>(number_of(round_up_or_down(first[i] * inverse, lower(words[i]), 127)));
      stored[i + kHalf] =
          static_cast<int8_t>(number_of(round_up_or_down(first[i + kHalf] * inverse, upper(words[i]), 127)));
    }
  }
}

void decode_int8(RowBlock row, float* out, int64_t n) {
  const int8_t* in = static_cast<const int8_t*>(row.data);
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const float scale = row.scales[b / kScaleBlock];
    for (int64_t line = 0; line < kScaleBlock; line += 64) ahead(in + b + line + 2 * kAhead);
    FASTAGG_NO_CARRY
    for (int64_t i = b; i < b + kScaleBlock; ++i) out[i] = static_cast<float>(static_cast<int32_t>(in[i])) * scale;
  }
}

void encode_int4(const float* in, const uint32_t* words, RowBlock row, int64_t n, const float* ask) {
  uint8_t* out = static_cast<uint8_t*>(row.data);
  float inverses[kBlock / kScaleBlock];
  find_scales(in, 7.0f, row.scales, inverses, n);
  for (int64_t b = 0; b < n; b += kScaleBlock, words += kCalls) {
    const float inverse = inverses[b / kScaleBlock];
    for (int64_t line = 0; line < kScaleBlock; line += kLine) ahead(ask + b + line);
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < kHalf; ++i)
      out[b / 2 + i] = nibbles(number_of(round_up_or_down(in[b + i] * inverse, lower(words[i]), 7)),
                               number_of(round_up_or_down(in[b + i + kHalf] * inverse, upper(words[i]), 7)));
  }
}

void decode_int4(RowBlock row, float* out, int64_t n) {
  const uint8_t* in = static_cast<const uint8_t*>(row.data);
  for (int64_t b = 0; b < n; b += kScaleBlock) {
    const float scale = row.scales[b / kScaleBlock];
    for (int64_t line = 0; line < kHalf; line += 64) ahead(in + b / 2 + line + kAhead);
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < kHalf; ++i) {
      out[b + i] = static_cast<float>(low_nibble(in[b / 2 + i])) * scale;
      out[b + i + kHalf] = static_cast<float>(high_nibble(in[b / 2 + i])) * scale;
    }
  }
}

// Weights are 1 but for sample weights; not multiplying by them is worth a tenth of this stage, and so is making the
// direction while the sum is in a register.
template <bool Weighted, bool Directed>
FASTAGG_FN void exchange_of(float* high, int8_t* low, const float* entering, float entering_weight,
                            const float* leaving, float leaving_weight, float* direction, float scale, int64_t n) {
  sweep(
      n,
      [=](int64_t i) FASTAGG_INLINE {
        float h = high[i];
        int8_t l = low[i];
        if constexpr (Weighted)
          add_change(h, l, entering_weight * entering[i] - leaving_weight * leaving[i]);
        else
          add_change(h, l, entering[i] - leaving[i]);
        high[i] = h;
        low[i] = l;
        if constexpr (Directed) direction[i] = h * scale;
      },
      high, entering, leaving);
}

void exchange_block(float* high, int8_t* low, const float* entering, float entering_weight, const float* leaving,
                    float leaving_weight, float* direction, float scale, int64_t n) {
  const bool weighted = entering_weight != 1.0f || leaving_weight != 1.0f;
  const auto run = weighted               ? direction != nullptr ? exchange_of<true, true> : exchange_of<true, false>
                   : direction != nullptr ? exchange_of<false, true>
                                          : exchange_of<false, false>;
  run(high, low, entering, entering_weight, leaving, leaving_weight, direction, scale, n);
}

// The codes of one scale block of a row, in pairs: elements i and i + kHalf.
template <int Format>
struct Codes;

template <>
struct Codes<kRowInt8> {
  static constexpr int32_t kLevels = 127;
  static constexpr int64_t kBytes = kScaleBlock;
  FASTAGG_FN void get(const uint8_t* codes, int64_t i, int32_t& first, int32_t& second) {
    first = static_cast<int8_t>(codes[i]);
    second = static_cast<int8_t>(codes[i + kHalf]);
  }
  FASTAGG_FN void put(uint8_t* codes, int64_t i, int32_t first, int32_t second) {
    codes[i] = static_cast<uint8_t>(first);
    codes[i + kHalf] = static_cast<uint8_t>(second);
  }
};

template <>
struct Codes<kRowInt4> {
  static constexpr int32_t kLevels = 7;
  static constexpr int64_t kBytes = kHalf;
  FASTAGG_FN void get(const uint8_t* codes, int64_t i, int32_t& first, int32_t& second) {
    first = low_nibble(codes[i]);
    second = high_nibble(codes[i]);
  }
  FASTAGG_FN void put(uint8_t* codes, int64_t i, int32_t first, int32_t second) { codes[i] = nibbles(first, second); }
};

// One pass instead of four (encode, decode twice, exchange): a fifth less time for an arrival at 110 M parameters.
template <int Format, bool Weighted, bool Termed>
FASTAGG_FN void replace_of(const RowChange& change) {
  using Code = Codes<Format>;
  float scales[kBlock / kScaleBlock], inverses[kBlock / kScaleBlock];
  find_scales(change.in, static_cast<float>(Code::kLevels), scales, inverses, change.n);
  const float entering = change.entering, leaving = change.leaving, sum_scale = change.sum_scale;
  const float term_weight = change.term_weight;
  for (int64_t b = 0; b < change.n; b += kScaleBlock) {
    const int64_t index = b / kScaleBlock;
    const auto codes = [=](const RowBlock& row)
                           FASTAGG_INLINE { return static_cast<uint8_t*>(row.data) + index * Code::kBytes; };
    const float inverse = inverses[index], scale = scales[index], old_scale = change.read.scales[index];
    const float term_scale = Termed ? change.term.scales[index] : 0.0f;
    change.write.scales[index] = scale;
    const float* in = change.in + b;
    const uint32_t* words = change.words + index * kCalls;
    const uint8_t* read = codes(change.read);
    const uint8_t* term = Termed ? codes(change.term) : nullptr;
    uint8_t* write = codes(change.write);
    float* high = change.high + b;
    int8_t* low = change.low + b;
    float* direction = change.direction + b;
    const auto exchange = [=](int64_t i, float added, float removed, float other) FASTAGG_INLINE {
      float h = high[i];
      int8_t l = low[i];
      add_change(h, l, Weighted ? entering * added - leaving * removed : added - removed);
      if constexpr (Termed) add_change(h, l, term_weight * other);
      high[i] = h;
      low[i] = l;
      direction[i] = h * sum_scale;
    };
    for (int64_t k = 0; k < kHalf; k += kStride) {
      // Two elements for every i.
      for (int64_t line = 2 * k; line < 2 * (k + kStride); line += kLine) {
        ahead(change.ask + b + line);
        ahead(high + line + kAhead);
      }
      for (int64_t line = 2 * k; line < 2 * (k + kStride); line += 64) ahead(low + line + kAhead);
      for (int64_t line = k; line < k + kStride; line += 64 * kHalf / Code::kBytes) {
        ahead(read + line * Code::kBytes / kHalf + kAhead);
        if constexpr (Termed) ahead(term + line * Code::kBytes / kHalf + kAhead);
      }
      FASTAGG_NO_CARRY
      for (int64_t i = k; i < k + kStride; ++i) {
        int32_t old_first, old_second, other_first = 0, other_second = 0;
        Code::get(read, i, old_first, old_second);
        if constexpr (Termed) Code::get(term, i, other_first, other_second);
        const Whole first = round_up_or_down(in[i] * inverse, lower(words[i]), Code::kLevels);
        const Whole second = round_up_or_down(in[i + kHalf] * inverse, upper(words[i]), Code::kLevels);
        Code::put(write, i, number_of(first), number_of(second));
        exchange(i, float_of(first) * scale, static_cast<float>(old_first) * old_scale,
                 static_cast<float>(other_first) * term_scale);
        exchange(i + kHalf, float_of(second) * scale, static_cast<float>(old_second) * old_scale,
                 static_cast<float>(other_second) * term_scale);
      }
    }
  }
}

template <int Format>
void replace_block(const RowChange& change) {
  const bool weighted = change.entering != 1.0f || change.leaving != 1.0f;
  const auto run = change.term.data == nullptr
                       ? weighted ? replace_of<Format, true, false> : replace_of<Format, false, false>
                   : weighted ? replace_of<Format, true, true>
                              : replace_of<Format, false, true>;
  run(change);
}

void add_exactly_block(double* total, const float* in, float weight, int64_t n) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) total[i] += static_cast<double>(weight * in[i]);
}

void settle_block(const double* total, float* high, int8_t* low, int64_t n) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) {
    const float rounded = static_cast<float>(total[i]);
    high[i] = rounded;
    low[i] = low_of(rounded, static_cast<float>(total[i] - static_cast<double>(rounded)));
  }
}

void combine_block(const float* a, float a_scale, const float* b, float b_scale, float* out, int64_t n) {
  sweep(n, [=](int64_t i) FASTAGG_INLINE { out[i] = a[i] * a_scale + b[i] * b_scale; }, b);
}

void sketch_block(const float* in, const uint32_t* signs, float* out, int64_t n) {
  sweep(
      n,
      [=](int64_t i) FASTAGG_INLINE {
        uint32_t bits;
        memcpy(&bits, in + i, sizeof bits);
        out[i] += float_from_bits(bits ^ ((signs[i / 32] >> (i % 32)) << 31));
      },
      in);
}
