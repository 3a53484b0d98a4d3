// Block kernels of optimizers whose moments have 8 bits (math/moments.h): decode, step, encode, all in the L1 cache.
// Included by kernels.inl, inside its namespace, after rows.inl.
//
// In lanes and not left to the compiler: this work is bound by what the processor can do per cycle, and combining three
// operands in one instruction, where there is one, is a fifth of it.

constexpr int64_t kQuarter = kScaleBlock / 4;

#if defined(__AVX512F__)
constexpr int64_t kFloats = 16;
#elif defined(__AVX2__)
constexpr int64_t kFloats = 8;
#else
constexpr int64_t kFloats = 4;
#endif
typedef float F __attribute__((vector_size(4 * kFloats)));
typedef uint32_t U __attribute__((vector_size(4 * kFloats)));

template <typename V, typename T>
FASTAGG_FN V load(const T* from) {
  V found;
  memcpy(&found, from, sizeof found);
  return found;
}

template <typename V, typename T>
FASTAGG_FN void store(V value, T* to) {
  memcpy(to, &value, sizeof value);
}

// (a & mask) | b
FASTAGG_FN U pick(U a, uint32_t mask, U b) {
#if defined(__AVX512F__)
  return (U)_mm512_ternarylogic_epi32((__m512i)a, _mm512_set1_epi32(static_cast<int>(mask)), (__m512i)b, 0xea);
#else
  return (a & mask) | b;
#endif
}

template <int Right>
FASTAGG_FN U rotate(U a) {
  if constexpr (Right == 0) return a;
#if defined(__AVX512F__)
  return (U)_mm512_maskz_ror_epi32(0xffff, (__m512i)a, Right);
#else
  return (a >> Right) | (a << (32 - Right));
#endif
}

// Left, or right where it is negative.
template <int Left>
FASTAGG_FN U shift(U a) {
  if constexpr (Left >= 0)
    return a << Left;
  else
    return a >> -Left;
}

FASTAGG_FN F root_of(F value) {
#if defined(__AVX512F__)
  return (F)_mm512_maskz_sqrt_ps(0xffff, (__m512)value);
#elif defined(__AVX2__)
  return (F)_mm256_sqrt_ps((__m256)value);
#elif defined(__SSE2__)
  return (F)_mm_sqrt_ps((__m128)value);
#else
  F found;
  for (int64_t i = 0; i < kFloats; ++i) found[i] = sqrtf(value[i]);
  return found;
#endif
}

struct PlainRoots {  // of steps without bias correction, whose scale is 1
  FASTAGG_FN F of(F value, float) { return root_of(value); }
};

struct ScaledRoots {
  FASTAGG_FN F of(F value, float scale) { return root_of(value) * scale; }
};

// The larger of `most` and |value|; NaN is passed over.
FASTAGG_FN F larger_magnitude(F most, F value) {
#if defined(__AVX512DQ__)
  return (F)_mm512_maskz_range_ps(0xffff, (__m512)value, (__m512)most, 0x0b);
#else
  const F magnitude = (F)((U)value & 0x7fffffffu);
  return magnitude > most ? magnitude : most;
#endif
}

FASTAGG_FN float largest_of(F values) {
  float lanes[kFloats];
  store(values, lanes);
  for (int64_t half = kFloats / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
}

// Code I of each word as math/moments.h says, without its unit: values over c*2^Span.
template <int I, uint32_t Span, uint32_t Mask>
FASTAGG_FN F relative(U words) {
  constexpr uint32_t base = (127u - Span) << 23;
  return (F)pick(shift<kCut - 8 * I>(words), Mask << kCut, U{} + base) - float_from_bits(base);
}

template <int I>
FASTAGG_FN F decoded_m(U words) {
  return (F)pick(shift<24 - 8 * I>(words), 0x80000000u, (U)relative<I, kSpanM, 0x7f>(words));
}

template <int I>
FASTAGG_FN F decoded_v(U words) {
  return relative<I, kSpanV, 0xff>(words);
}

// `codes` with code I set. `random` is a word's bits rotated, `unit` c as a float and `minus` the negative of its bits.
template <int I>
FASTAGG_FN U encoded_m(F value, U random, float unit, uint32_t minus, U codes) {
  const U given = (U)value;
  const U above = (U)((F)(given & 0x7fffffffu) + unit) + pick(random, kCutMask, U{} + minus);
  return pick(shift<8 * I - 24>(given), 0x80u << (8 * I), pick(shift<8 * I - kCut>(above), 0x7fu << (8 * I), codes));
}

template <int I>
FASTAGG_FN U encoded_v(F value, U random, float unit, uint32_t minus, U codes) {
  const F least = F{} + 0.125f * unit;
  const U above = (U)((value > least ? value : least) + unit) + pick(random, kCutMask, U{} + minus);
  return pick(shift<8 * I - kCut>(above), 0xffu << (8 * I), codes);
}

// A block between its step and its encoding.
struct Fresh {
  alignas(64) float m[kScaleBlock], v[kScaleBlock], vhat[kScaleBlock];
  alignas(64) uint32_t words[kQuarter];
  float most_m, most_v;  // the largest magnitude of m, and of v or vhat
  uint32_t unit_m, unit_v;
};

// What a loop over a block's 64 words holds in registers.
struct Turn {
  Hyper h;
  float full_m, full_v, decay1, decay2;
  float unit_m, unit_v;
  uint32_t minus_m, minus_v;
};

struct Words3 {
  U m, v, vhat, random, m_out, v_out;
};

// How far ahead codes are asked for, in words of four.
constexpr int64_t kCodesAhead = kBlock / 4;

// Where a block's vectors start.
struct Vectors {
  const float* direction;
  const float* x;
  float* x_out;
};

template <int Kind, int I>
FASTAGG_FN void advance_quarter(const Turn& t, const Vectors& at_block, Fresh& now, int64_t j, const Words3& w,
                                F& most_m, F& most_v) {
  const int64_t at = I * kQuarter + j;
  ahead(at_block.direction + at + kAhead);
  ahead(at_block.x + at + kAhead);
  F m = decoded_m<I>(w.m), v{}, vhat{};
  if constexpr (kHasV[Kind]) v = decoded_v<I>(w.v);
  if constexpr (Kind == kYogi || Kind == kAdagrad) v = v * t.full_v;
  if constexpr (kHasVhat[Kind]) vhat = decoded_v<I>(w.vhat) * t.full_v;
  advance<Kind>(load<F>(at_block.direction + at), m, v, vhat, t.h, t.decay1, t.decay2);
  store(m, now.m + at);
  most_m = larger_magnitude(most_m, m);
  if constexpr (kHasV[Kind]) {
    store(v, now.v + at);
    if constexpr (kHasVhat[Kind]) store(vhat, now.vhat + at);
    const F second = kHasVhat[Kind] ? vhat : v;
    most_v = second > most_v ? second : most_v;
  }
}

template <int Kind, typename Roots, int I>
FASTAGG_FN void finish_quarter(const Turn& t, const Vectors& at_block, const Fresh& before, int64_t j, Words3& w) {
  const int64_t at = I * kQuarter + j;
  const F m = load<F>(before.m + at);
  F d{}, v{}, vhat{};
  if constexpr (Kind == kLookahead) d = load<F>(at_block.direction + at);
  if constexpr (kHasV[Kind]) v = load<F>(before.v + at);
  if constexpr (kHasVhat[Kind]) vhat = load<F>(before.vhat + at);
  store(moved<Kind, Roots>(d, load<F>(at_block.x + at), m, v, vhat, t.h), at_block.x_out + at);
  w.m_out = encoded_m<I>(m, rotate<8 * I>(w.random), t.unit_m, t.minus_m, w.m_out);
  // Another element's bits, so that an element's two errors have nothing to do with each other.
  if constexpr (kHasV[Kind]) w.v_out = encoded_v<I>(v, rotate<8 * (I ^ 2)>(w.random), t.unit_v, t.minus_v, w.v_out);
}

// Advances the moments of block `b` into `now`, and moves and encodes block b-1 from `before`, in one loop: the one is
// long chains of additions, the other waits for divisions, and neither alone fills the processor.
template <int Kind, typename Roots, bool Advances, bool Finishes>
FASTAGG_FN void coded_turn(const CodedBlock& block, int64_t b, const Hyper& hyper, Fresh& now, const Fresh& before) {
  const uint32_t* m = block.m + b * kQuarter;
  const uint32_t* v = block.v + b * kQuarter;
  const uint32_t* vhat = block.vhat + b * kQuarter;
  const auto vectors = [&](int64_t of) FASTAGG_INLINE {
    const int64_t at = of * kScaleBlock;
    return Vectors{block.direction + at, block.x + at, block.x_out + at};
  };
  Turn t{};
  t.h = hyper;
  Vectors at_now{}, at_before{};
  if constexpr (Advances) {
    at_now = vectors(b);
    t.full_m = full_of(block.units_m[b], kSpanM);
    t.decay1 = hyper.beta1 * t.full_m;
    if constexpr (kHasV[Kind]) {
      t.full_v = full_of(block.units_v[b], kSpanV);
      t.decay2 = hyper.beta2 * t.full_v;
    }
  }
  if constexpr (Finishes) {
    at_before = vectors(b - 1);
    t.unit_m = float_from_bits(before.unit_m);
    t.minus_m = 0u - before.unit_m;
    t.unit_v = float_from_bits(before.unit_v);
    t.minus_v = 0u - before.unit_v;
  }
  F most_m{}, most_v{};
  for (int64_t j = 0; j < kQuarter; j += kFloats) {
    Words3 w{};
    if constexpr (Advances) {
      w.m = load<U>(m + j);
      ahead(m + j + kCodesAhead);
      if constexpr (kHasV[Kind]) {
        w.v = load<U>(v + j);
        ahead(v + j + kCodesAhead);
      }
      if constexpr (kHasVhat[Kind]) {
        w.vhat = load<U>(vhat + j);
        ahead(vhat + j + kCodesAhead);
      }
    }
    if constexpr (Finishes) w.random = load<U>(before.words + j);
    if constexpr (Finishes) finish_quarter<Kind, Roots, 0>(t, at_before, before, j, w);
    if constexpr (Advances) advance_quarter<Kind, 0>(t, at_now, now, j, w, most_m, most_v);
    if constexpr (Finishes) finish_quarter<Kind, Roots, 1>(t, at_before, before, j, w);
    if constexpr (Advances) advance_quarter<Kind, 1>(t, at_now, now, j, w, most_m, most_v);
    if constexpr (Finishes) finish_quarter<Kind, Roots, 2>(t, at_before, before, j, w);
    if constexpr (Advances) advance_quarter<Kind, 2>(t, at_now, now, j, w, most_m, most_v);
    if constexpr (Finishes) finish_quarter<Kind, Roots, 3>(t, at_before, before, j, w);
    if constexpr (Advances) advance_quarter<Kind, 3>(t, at_now, now, j, w, most_m, most_v);
    if constexpr (Finishes) {
      store(w.m_out, block.m + (b - 1) * kQuarter + j);
      if constexpr (kHasV[Kind]) store(w.v_out, block.v + (b - 1) * kQuarter + j);
    }
  }
  if constexpr (Advances) {
    now.most_m = largest_of(most_m);
    now.most_v = largest_of(most_v);
  }
}

// Anything larger counts as the largest from here on, so that one overflow does not become a block of NaN.
void keep_finite(float* values) {
  const float largest = float_from_bits(kLargest);
  for (int64_t i = 0; i < kScaleBlock; ++i) {
    values[i] = values[i] < largest ? values[i] : largest;
    values[i] = values[i] > -largest ? values[i] : -largest;
  }
}

// The units in which a block that has been stepped will be stored.
template <int Kind>
FASTAGG_FN void choose_units(Fresh& fresh) {
  const float largest = float_from_bits(kLargest);
  if (fresh.most_m > largest || fresh.most_v > largest) {
    keep_finite(fresh.m);
    if constexpr (kHasV[Kind]) keep_finite(fresh.v);
    if constexpr (kHasVhat[Kind]) keep_finite(fresh.vhat);
    fresh.most_m = fresh.most_m < largest ? fresh.most_m : largest;
    fresh.most_v = fresh.most_v < largest ? fresh.most_v : largest;
  }
  fresh.unit_m = unit_bits(bits_of(fresh.most_m), kSpanM);
  fresh.unit_v = unit_bits(bits_of(fresh.most_v), kSpanV);
}

// vhat = max(vhat, v), as codes: rounding with the same bits keeps order, so the larger code is the larger value's. In
// another unit than before, vhat is rounded anew.
FASTAGG_FN void raise_vhat(const CodedBlock& block, int64_t b, const Fresh& fresh) {
  uint32_t* vhat = block.vhat + b * kQuarter;
  if (bits_of(block.units_v[b]) != fresh.unit_v) {
    const float full = full_of(block.units_v[b], kSpanV), unit = float_from_bits(fresh.unit_v);
    for (int64_t j = 0; j < kQuarter; j += kFloats) {
      const U held = load<U>(vhat + j), random = load<U>(fresh.words + j);
      U codes{};
      codes = encoded_v<0>(decoded_v<0>(held) * full, rotate<16>(random), unit, 0u - fresh.unit_v, codes);
      codes = encoded_v<1>(decoded_v<1>(held) * full, rotate<24>(random), unit, 0u - fresh.unit_v, codes);
      codes = encoded_v<2>(decoded_v<2>(held) * full, rotate<0>(random), unit, 0u - fresh.unit_v, codes);
      codes = encoded_v<3>(decoded_v<3>(held) * full, rotate<8>(random), unit, 0u - fresh.unit_v, codes);
      store(codes, vhat + j);
    }
  }
  uint8_t* held = reinterpret_cast<uint8_t*>(vhat);
  const uint8_t* v = reinterpret_cast<const uint8_t*>(block.v + b * kQuarter);
  FASTAGG_NO_CARRY
  for (int64_t j = 0; j < kScaleBlock; ++j) held[j] = held[j] > v[j] ? held[j] : v[j];
}

template <int Kind, typename Roots>
FASTAGG_FN void coded_blocks(const CodedBlock& block, const Hyper& hyper, const RandomKey& key, int64_t first) {
  Fresh fresh[2];
  const int64_t blocks = block.n / kScaleBlock;
  const auto settle = [&](int64_t b) {
    const Fresh& found = fresh[b % 2];
    if constexpr (kHasVhat[Kind]) raise_vhat(block, b, found);
    block.units_m[b] = float_from_bits(found.unit_m);
    if constexpr (kHasV[Kind]) block.units_v[b] = float_from_bits(found.unit_v);
  };
  for (int64_t b = 0; b < blocks; ++b) {
    Fresh& now = fresh[b % 2];
    const Fresh& before = fresh[(b + 1) % 2];
    philox_words<kMomentCalls>(key, first + b, now.words, block.x + b * kScaleBlock + kBlock);
    if (b == 0) {
      coded_turn<Kind, Roots, true, false>(block, b, hyper, now, before);
    } else {
      coded_turn<Kind, Roots, true, true>(block, b, hyper, now, before);
      settle(b - 1);
    }
    choose_units<Kind>(now);
  }
  coded_turn<Kind, Roots, false, true>(block, blocks, hyper, fresh[blocks % 2], fresh[(blocks - 1) % 2]);
  settle(blocks - 1);
}

template <int Kind>
void coded_block(const CodedBlock& block, const Hyper& hyper, const RandomKey& key, int64_t first) {
  if (hyper.root_scale == 1.0f)
    coded_blocks<Kind, PlainRoots>(block, hyper, key, first);
  else
    coded_blocks<Kind, ScaledRoots>(block, hyper, key, first);
}
