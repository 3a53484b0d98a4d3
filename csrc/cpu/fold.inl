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
template <int Count, bool Based, bool Fresh, typename L, bool Streams, typename Most>
FASTAGG_FN void fold_at(const Fold& f, int64_t i, Most* most) {
  typedef typename L::F Of;
  Of base{}, sum{};
  if constexpr (Based) base = L::load(f.base + i);
  if constexpr (!Fresh) sum = L::load(f.acc + i);
#pragma GCC unroll 4
  for (int k = 0; k < Count; ++k) {
    Of difference = L::load(f.in[k] + i);
    if constexpr (Based) difference = difference - base;
    sum = sum + f.weight[k] * difference;
    most[k] = larger_bits(most[k], L::bits(difference));
  }
  put<L, Streams>(sum, f.out + i, Streams);
}

template <int Count, bool Based, bool Fresh, bool Streams>
FASTAGG_FN void fold_of(const Fold& given, int32_t* most) {
  const Fold f = given;  // a copy: the compiler then knows that no store changes it
  I wide[Count] = {};
  int64_t i = 0;
  for (; i + kStrip <= f.n; i += kStrip) {
    if (f.ahead != 0)
      for (int64_t line = i + f.ahead; line < i + f.ahead + kStrip; line += kLine) {
        for (int k = 0; k < Count; ++k) ahead_of(f.in[k] + line);
        if constexpr (Based) ahead_of(f.base + line);
        if constexpr (!Fresh) ahead_of(f.acc + line);
      }
#pragma GCC unroll 4
    for (int64_t k = i; k < i + kStrip; k += kFloats) fold_at<Count, Based, Fresh, Simd, Streams>(f, k, wide);
  }
  if constexpr (Streams) fence();
  for (int k = 0; k < Count; ++k) {
    most[k] = 0;
    for (int64_t lane = 0; lane < kFloats; ++lane) most[k] = wide[k][lane] > most[k] ? wide[k][lane] : most[k];
  }
  for (; i < f.n; ++i) fold_at<Count, Based, Fresh, One, false>(f, i, most);
}

template <int Count, bool Based, bool Fresh>
FASTAGG_FN void fold_past(const Fold& f, int32_t* most) {
  f.stream_out ? fold_of<Count, Based, Fresh, true>(f, most) : fold_of<Count, Based, Fresh, false>(f, most);
}

template <int Count>
FASTAGG_FN void fold_some(const Fold& f, int32_t* most) {
  if (f.base == nullptr)
    return f.acc == nullptr ? fold_past<Count, false, true>(f, most) : fold_past<Count, false, false>(f, most);
  return f.acc == nullptr ? fold_past<Count, true, true>(f, most) : fold_past<Count, true, false>(f, most);
}

void fold_run(const Fold& f, int32_t* most) {
  if (f.count == 4) return fold_some<4>(f, most);
  if (f.count == 2) return fold_some<2>(f, most);
  fold_some<1>(f, most);
}
