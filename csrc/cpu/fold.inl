// Adds trained models to a sum without writing their differences to memory. Included by kernels.inl.

FASTAGG_FN I larger_bits(I most, U bits) {
  const I found = (I)(bits & 0x7fffffffu);
  return found > most ? found : most;
}
FASTAGG_FN int32_t larger_bits(int32_t most, uint32_t bits) {
  const int32_t found = static_cast<int32_t>(bits & 0x7fffffffu);
  return found > most ? found : most;
}

// Based: the values are models and are compared with a base; otherwise they are differences. Fresh: there is no sum
// yet. The bits of infinity and NaN are larger than any number's, so `most` is the largest magnitude, compared as an
// integer.
template <bool Based, bool Fresh, typename L, bool Streams, typename Most>
FASTAGG_FN Most fold_at(const Fold& f, int64_t i, Most most) {
  typedef typename L::F Of;
  Of difference = L::load(f.in + i);
  if constexpr (Based) difference = difference - L::load(f.base + i);
  Of sum{};
  if constexpr (!Fresh) sum = L::load(f.acc + i);
  put<L, Streams>(sum + f.weight * difference, f.out + i, Streams);
  return larger_bits(most, L::bits(difference));
}

template <bool Based, bool Fresh, bool Streams>
FASTAGG_FN int32_t fold_of(const Fold& given) {
  const Fold f = given;  // a copy: the compiler then knows that no store changes it
  I wide{};
  int64_t i = 0;
  for (; i + kStrip <= f.n; i += kStrip) {
    if (f.ahead != 0)
      for (int64_t line = i + f.ahead; line < i + f.ahead + kStrip; line += kLine) {
        ahead_of(f.in + line);
        if constexpr (Based) ahead_of(f.base + line);
        if constexpr (!Fresh) ahead_of(f.acc + line);
      }
#pragma GCC unroll 4
    for (int64_t k = i; k < i + kStrip; k += kFloats) wide = fold_at<Based, Fresh, Simd, Streams>(f, k, wide);
  }
  if constexpr (Streams) fence();
  int32_t most = 0;
  for (int64_t lane = 0; lane < kFloats; ++lane) most = wide[lane] > most ? wide[lane] : most;
  for (; i < f.n; ++i) most = fold_at<Based, Fresh, One, false>(f, i, most);
  return most;
}

template <bool Based, bool Fresh>
FASTAGG_FN int32_t fold_past(const Fold& f) {
  return f.stream_out ? fold_of<Based, Fresh, true>(f) : fold_of<Based, Fresh, false>(f);
}

int32_t fold_block(const Fold& f) {
  if (f.base == nullptr) return f.acc == nullptr ? fold_past<false, true>(f) : fold_past<false, false>(f);
  return f.acc == nullptr ? fold_past<true, true>(f) : fold_past<true, false>(f);
}
