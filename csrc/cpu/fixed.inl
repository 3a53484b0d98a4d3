// Sums of whole numbers (math/fixed.h). The lower halves lie in memory of floats. Included by kernels.inl.

// At least the magnitude of a whole number, in one operation less.
FASTAGG_FN U magnitude_of(U sum) { return sum ^ (U)((I)sum >> 31); }
FASTAGG_FN uint32_t magnitude_of(uint32_t sum) { return sum ^ static_cast<uint32_t>(static_cast<int32_t>(sum) >> 31); }

template <bool Fresh, typename L, bool Streams, typename Bits>
FASTAGG_FN Bits add_fixed_at(const Fixed& f, int64_t i, Bits seen) {
  Bits sum = fixed_of<L>(L::load(f.in + i), f.by);
  if constexpr (!Fresh) sum += L::bits(L::load(f.acc + i));
  put<L, Streams>(L::from_bits(sum), f.out + i, Streams);
  return seen | magnitude_of(sum);
}

template <bool Fresh, bool Streams>
FASTAGG_FN uint32_t add_fixed_of(const Fixed& given) {
  const Fixed f = given;  // a copy: the compiler then knows that no store changes it
  U wide{};
  int64_t i = 0;
  for (; i + kStrip <= f.n; i += kStrip) {
    if (f.ahead != 0)
      for (int64_t line = i + f.ahead; line < i + f.ahead + kStrip; line += kLine) {
        ahead_of(f.in + line);
        if constexpr (!Fresh) ahead_of(f.acc + line);
      }
#pragma GCC unroll 4
    for (int64_t k = i; k < i + kStrip; k += kFloats) wide = add_fixed_at<Fresh, Simd, Streams>(f, k, wide);
  }
  if constexpr (Streams) fence();
  uint32_t seen = 0;
  for (int64_t lane = 0; lane < kFloats; ++lane) seen |= wide[lane];
  for (; i < f.n; ++i) seen = add_fixed_at<Fresh, One, false>(f, i, seen);
  return seen;
}

uint32_t add_fixed_block(const Fixed& f) {
  if (f.stream_out) return f.acc == nullptr ? add_fixed_of<true, true>(f) : add_fixed_of<false, true>(f);
  return f.acc == nullptr ? add_fixed_of<true, false>(f) : add_fixed_of<false, false>(f);
}

void carry_fixed_block(float* low, int32_t* high, int64_t n) {
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = bits_of(low[i]);
    const int32_t carry = static_cast<int32_t>(bits + (1u << (kUpperBits - 1))) >> kUpperBits;
    high[i] += carry;
    low[i] = float_from_bits(bits - (static_cast<uint32_t>(carry) << kUpperBits));
  }
}

void settle_fixed_block(const float* low, const int32_t* high, float* out, int64_t n) {
  if (high == nullptr) {
    FASTAGG_NO_CARRY
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(static_cast<int32_t>(bits_of(low[i])));
    return;
  }
  FASTAGG_NO_CARRY
  for (int64_t i = 0; i < n; ++i) {
    const double upper = static_cast<double>(high[i]) * (1 << kUpperBits);
    out[i] = static_cast<float>(upper + static_cast<double>(static_cast<int32_t>(bits_of(low[i]))));
  }
}
