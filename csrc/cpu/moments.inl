// Steps with 8-bit moments (math/moments.h) on blocks in the L1 cache: the moments are decoded, updated and encoded.
// Included by kernels.inl, after rows.inl. The code uses explicit vector operations, because the number of instructions
// limits the speed. With AVX-512, pick() is one instruction, which saves a fifth of the time.

constexpr int64_t kQuarter = kScaleBlock / 4;

FASTAGG_FN float largest_of(F values) {
  float lanes[kFloats];
  put_vector(values, lanes);
  for (int64_t half = kFloats / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
}

// Decodes code I of each word (math/moments.h), without the unit c. The result is the code's value divided by c*2^Span.
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

// Returns `codes` with code I, which must be 0, set to `value`'s code. `random`: the words' random bits, rotated for
// code I. `unit`: c as a float. `minus`: the negative of c's bits.
template <int I>
FASTAGG_FN U encoded_m(F value, U random, float unit, uint32_t minus, U codes) {
  const U bits = (U)value;
  const U above = (U)((F)(bits & 0x7fffffffu) + unit) + pick(random, kCutMask, U{} + minus);
  return pick(shift<8 * I - 24>(bits), 0x80u << (8 * I), pick(shift<8 * I - kCut>(above), 0x7fu << (8 * I), codes));
}

template <int I>
FASTAGG_FN U encoded_v(F value, U random, float unit, uint32_t minus, U codes) {
  const F least = F{} + 0.125f * unit;
  const U above = (U)((value > least ? value : least) + unit) + pick(random, kCutMask, U{} + minus);
  return pick(shift<8 * I - kCut>(above), 0xffu << (8 * I), codes);
}

// A block's moments after a step and before they are encoded. `words` are the block's random words.
struct SteppedBlock {
  alignas(64) float m[kScaleBlock], v[kScaleBlock], vhat[kScaleBlock];
  alignas(64) uint32_t words[kQuarter];
  float most_m, most_v;     // the largest magnitude of m, and of vhat (without vhat: of v)
  uint32_t unit_m, unit_v;  // the bits of the new units
};

// The values that a loop over a block's 64 words keeps in registers.
struct BlockFactors {
  Hyper h;
  float full_m, full_v, decay1, decay2;
  float old_full_m, old_full_v;  // full_m and full_v of the previous block
  float unit_m, unit_v;
  uint32_t minus_m, minus_v;
};

struct MomentWords {
  U m, v, vhat, old_m, old_v, old_vhat, random, m_out, v_out;
};

// The addresses of a block's vectors, and the prefetch distance.
struct Vectors {
  const float* direction;
  const float* x;
  float* x_out;
  int64_t ahead;
};

template <typename Opt, int I>
FASTAGG_FN void advance_quarter(const BlockFactors& t, const Vectors& at_block, SteppedBlock& now, int64_t j,
                                const MomentWords& w, F& most_m, F& most_v) {
  const int64_t at = I * kQuarter + j;
  ahead_of(at_block.x + at + at_block.ahead);
  if (at_block.ahead != 0) ahead_of(at_block.direction + at + at_block.ahead);
  MomentValues<F> held{};
  held.m = decoded_m<I>(w.m);
  if constexpr (Opt::kV) held.v = decoded_v<I>(w.v);
  if constexpr (Opt::kScalesV) held.v = held.v * t.full_v;
  if constexpr (Opt::kVhat) held.vhat = decoded_v<I>(w.vhat) * t.full_v;
  Opt::template advance<Simd>(vector_at<F>(at_block.direction + at), held, t.h, t.decay1, t.decay2);
  const F m = held.m, v = held.v, vhat = held.vhat;
  put_vector(m, now.m + at);
  most_m = larger_magnitude(most_m, m);
  if constexpr (Opt::kV) {
    put_vector(v, now.v + at);
    if constexpr (Opt::kVhat) put_vector(vhat, now.vhat + at);
    const F second = Opt::kVhat ? vhat : v;
    most_v = second > most_v ? second : most_v;
  }
}

template <typename Opt, int I>
FASTAGG_FN void finish_quarter(const BlockFactors& t, const Vectors& at_block, const SteppedBlock& before, int64_t j,
                               MomentWords& w) {
  const int64_t at = I * kQuarter + j;
  MomentValues<F> old{}, held{};
  old.m = decoded_m<I>(w.old_m) * t.old_full_m;
  held.m = vector_at<F>(before.m + at);
  if constexpr (Opt::kV) {
    old.v = decoded_v<I>(w.old_v) * t.old_full_v;
    held.v = vector_at<F>(before.v + at);
  }
  if constexpr (Opt::kVhat) {
    old.vhat = decoded_v<I>(w.old_vhat) * t.old_full_v;
    held.vhat = vector_at<F>(before.vhat + at);
  }
  const F d = vector_at<F>(at_block.direction + at), x = vector_at<F>(at_block.x + at);
  put_vector(Opt::template moved<Simd>(d, x, old, held, t.h), at_block.x_out + at);
  w.m_out = encoded_m<I>(held.m, rotate<8 * I>(w.random), t.unit_m, t.minus_m, w.m_out);
  // An element's m and v use random bits of different elements. So the two rounding errors are nearly independent.
  if constexpr (Opt::kV) w.v_out = encoded_v<I>(held.v, rotate<8 * (I ^ 2)>(w.random), t.unit_v, t.minus_v, w.v_out);
}

// Advances the moments of block b into `now`, and in the same loop moves x and encodes the moments of block b-1, from
// `before`. The first task has long chains of dependent additions, and the second task waits for divisions. Together
// the tasks keep the processor busy. Advances: whether the loop does the first task. Finishes: the second task.
template <typename Opt, bool Advances, bool Finishes>
FASTAGG_FN void coded_turn(const CodedBlock& block, int64_t b, const Hyper& hyper, SteppedBlock& now,
                           const SteppedBlock& before) {
  const uint32_t* m = block.m + b * kQuarter;
  const uint32_t* v = block.v + b * kQuarter;
  const uint32_t* vhat = block.vhat + b * kQuarter;
  const auto vectors = [&](int64_t of) FASTAGG_INLINE {
    const int64_t at = of * kScaleBlock;
    return Vectors{block.direction + at, block.x + at, block.x_out + at, block.ahead};
  };
  BlockFactors t{};
  t.h = hyper;
  Vectors at_now{}, at_before{};
  if constexpr (Advances) {
    at_now = vectors(b);
    t.full_m = full_of(block.units_m[b], kSpanM);
    t.decay1 = hyper.beta1 * t.full_m;
    if constexpr (Opt::kV) {
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
    t.old_full_m = full_of(block.units_m[b - 1], kSpanM);
    if constexpr (Opt::kV) t.old_full_v = full_of(block.units_v[b - 1], kSpanV);
  }
  F most_m{}, most_v{};
  for (int64_t j = 0; j < kQuarter; j += kFloats) {
    MomentWords w{};
    if constexpr (Advances) {
      w.m = vector_at<U>(m + j);
      if (block.ahead != 0) ahead_of(m + j + block.ahead / 2);
      if constexpr (Opt::kV) {
        w.v = vector_at<U>(v + j);
        if (block.ahead != 0) ahead_of(v + j + block.ahead / 2);
      }
      if constexpr (Opt::kVhat) {
        w.vhat = vector_at<U>(vhat + j);
        if (block.ahead != 0) ahead_of(vhat + j + block.ahead / 2);
      }
    }
    if constexpr (Finishes) {
      w.random = vector_at<U>(before.words + j);
      w.old_m = vector_at<U>(m - kQuarter + j);
      if constexpr (Opt::kV) w.old_v = vector_at<U>(v - kQuarter + j);
      if constexpr (Opt::kVhat) w.old_vhat = vector_at<U>(vhat - kQuarter + j);
    }
    if constexpr (Finishes) finish_quarter<Opt, 0>(t, at_before, before, j, w);
    if constexpr (Advances) advance_quarter<Opt, 0>(t, at_now, now, j, w, most_m, most_v);
    if constexpr (Finishes) finish_quarter<Opt, 1>(t, at_before, before, j, w);
    if constexpr (Advances) advance_quarter<Opt, 1>(t, at_now, now, j, w, most_m, most_v);
    if constexpr (Finishes) finish_quarter<Opt, 2>(t, at_before, before, j, w);
    if constexpr (Advances) advance_quarter<Opt, 2>(t, at_now, now, j, w, most_m, most_v);
    if constexpr (Finishes) finish_quarter<Opt, 3>(t, at_before, before, j, w);
    if constexpr (Advances) advance_quarter<Opt, 3>(t, at_now, now, j, w, most_m, most_v);
    if constexpr (Finishes) {
      put_vector(w.m_out, block.m + (b - 1) * kQuarter + j);
      if constexpr (Opt::kV) put_vector(w.v_out, block.v + (b - 1) * kQuarter + j);
    }
  }
  if constexpr (Advances) {
    now.most_m = largest_of(most_m);
    now.most_v = largest_of(most_v);
  }
}

// Limits values to the largest storable magnitude, so that one overflow does not make a whole block NaN.
void keep_finite(float* values) {
  const float largest = float_from_bits(kLargest);
  for (int64_t i = 0; i < kScaleBlock; ++i) {
    values[i] = values[i] < largest ? values[i] : largest;
    values[i] = values[i] > -largest ? values[i] : -largest;
  }
}

// Chooses the units in which a block's moments are stored after the step. First limits magnitudes to kLargest.
template <typename Opt>
FASTAGG_FN void choose_units(SteppedBlock& fresh) {
  const float largest = float_from_bits(kLargest);
  if (fresh.most_m > largest || fresh.most_v > largest) {
    keep_finite(fresh.m);
    if constexpr (Opt::kV) keep_finite(fresh.v);
    if constexpr (Opt::kVhat) keep_finite(fresh.vhat);
    fresh.most_m = fresh.most_m < largest ? fresh.most_m : largest;
    fresh.most_v = fresh.most_v < largest ? fresh.most_v : largest;
  }
  fresh.unit_m = unit_bits(bits_of(fresh.most_m), kSpanM);
  fresh.unit_v = unit_bits(bits_of(fresh.most_v), kSpanV);
}

// Computes vhat = max(vhat, v) on codes. v and vhat are rounded with the same random bits, so the larger value has the
// larger code. If the unit has changed, vhat is first encoded in the new unit.
FASTAGG_FN void raise_vhat(const CodedBlock& block, int64_t b, const SteppedBlock& fresh) {
  uint32_t* vhat = block.vhat + b * kQuarter;
  if (bits_of(block.units_v[b]) != fresh.unit_v) {
    const float full = full_of(block.units_v[b], kSpanV), unit = float_from_bits(fresh.unit_v);
    for (int64_t j = 0; j < kQuarter; j += kFloats) {
      const U held = vector_at<U>(vhat + j), random = vector_at<U>(fresh.words + j);
      U codes{};
      codes = encoded_v<0>(decoded_v<0>(held) * full, rotate<16>(random), unit, 0u - fresh.unit_v, codes);
      codes = encoded_v<1>(decoded_v<1>(held) * full, rotate<24>(random), unit, 0u - fresh.unit_v, codes);
      codes = encoded_v<2>(decoded_v<2>(held) * full, rotate<0>(random), unit, 0u - fresh.unit_v, codes);
      codes = encoded_v<3>(decoded_v<3>(held) * full, rotate<8>(random), unit, 0u - fresh.unit_v, codes);
      put_vector(codes, vhat + j);
    }
  }
  uint8_t* held = reinterpret_cast<uint8_t*>(vhat);
  const uint8_t* v = reinterpret_cast<const uint8_t*>(block.v + b * kQuarter);
  FASTAGG_NO_CARRY
  for (int64_t j = 0; j < kScaleBlock; ++j) held[j] = held[j] > v[j] ? held[j] : v[j];
}

template <typename Opt>
void coded_block(const CodedBlock& block, const Hyper& hyper, const RandomKey& key, int64_t first) {
  SteppedBlock fresh[2];
  const int64_t blocks = block.n / kScaleBlock;
  const auto settle = [&](int64_t b) {
    const SteppedBlock& settled = fresh[b % 2];
    if constexpr (Opt::kVhat) raise_vhat(block, b, settled);
    block.units_m[b] = float_from_bits(settled.unit_m);
    if constexpr (Opt::kV) block.units_v[b] = float_from_bits(settled.unit_v);
  };
  for (int64_t b = 0; b < blocks; ++b) {
    SteppedBlock& now = fresh[b % 2];
    const SteppedBlock& before = fresh[(b + 1) % 2];
    philox_words<kMomentCalls>(key, first + b, now.words, nullptr);
    if (b == 0) {
      coded_turn<Opt, true, false>(block, b, hyper, now, before);
    } else {
      coded_turn<Opt, true, true>(block, b, hyper, now, before);
      settle(b - 1);
    }
    choose_units<Opt>(now);
  }
  coded_turn<Opt, false, true>(block, blocks, hyper, fresh[blocks % 2], fresh[(blocks - 1) % 2]);
  settle(blocks - 1);
}
