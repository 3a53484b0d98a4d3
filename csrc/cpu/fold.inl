// Adds trained models to a sum without writing their differences to memory. Included by kernels.inl.

FASTAGG_FN I larger_bits(I largest, U bits) {
  const I magnitude = (I)(bits & 0x7fffffffu);
  return magnitude > largest ? magnitude : largest;
}
FASTAGG_FN int32_t larger_bits(int32_t largest, uint32_t bits) {
  const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
  return magnitude > largest ? magnitude : largest;
}

// Adds `Count` inputs to the sum at place i, and updates their largest magnitudes. Based: whether the inputs are
// models, from which the base is subtracted. Otherwise the inputs are differences. SteppedBlock: whether the sum starts
// from zero. Magnitudes are compared as integers, so infinity and NaN are larger than any finite number.
template <int Count, bool Based, bool SteppedBlock, typename L, bool Streams, typename Most>
FASTAGG_FN void fold_at(const Fold& f, int64_t i, Most* largest) {
  typedef typename L::F Of;
  Of base{}, sum{};
  if constexpr (Based) base = L::load(f.base + i);
  if constexpr (!SteppedBlock) sum = L::load(f.acc + i);
#pragma GCC unroll 4
  for (int k = 0; k < Count; ++k) {
    Of difference = L::load(f.in[k] + i);
    if constexpr (Based) difference = difference - base;
    sum = sum + f.weight[k] * difference;
    largest[k] = larger_bits(largest[k], L::bits(difference));
  }
  put<L, Streams>(sum, f.out + i, Streams);
}

template <int Count, bool Based, bool SteppedBlock, bool Streams>
FASTAGG_FN void fold_of(const Fold& fold, int32_t* largest) {
  const Fold f = fold;  // a copy, so that the compiler knows that no store changes it
  I wide[Count] = {};
  int64_t i = 0;
  for (; i + kStrip <= f.n; i += kStrip) {
    if (f.ahead != 0)
      for (int64_t line = i + f.ahead; line < i + f.ahead + kStrip; line += kLine) {
        for (int k = 0; k < Count; ++k) ahead_of(f.in[k] + line);
        if constexpr (Based) ahead_of(f.base + line);
        if constexpr (!SteppedBlock) ahead_of(f.acc + line);
      }
#pragma GCC unroll 4
    for (int64_t k = i; k < i + kStrip; k += kFloats) fold_at<Count, Based, SteppedBlock, Simd, Streams>(f, k, wide);
  }
  if constexpr (Streams) fence();
  for (int k = 0; k < Count; ++k) {
    largest[k] = 0;
    for (int64_t lane = 0; lane < kFloats; ++lane) largest[k] = wide[k][lane] > largest[k] ? wide[k][lane] : largest[k];
  }
  for (; i < f.n; ++i) fold_at<Count, Based, SteppedBlock, ScalarLanes, false>(f, i, largest);
}

template <int Count, bool Based, bool SteppedBlock>
FASTAGG_FN void fold_past(const Fold& f, int32_t* largest) {
  f.stream_out ? fold_of<Count, Based, SteppedBlock, true>(f, largest)
               : fold_of<Count, Based, SteppedBlock, false>(f, largest);
}

template <int Count>
FASTAGG_FN void fold_some(const Fold& f, int32_t* largest) {
  if (f.base == nullptr)
    return f.acc == nullptr ? fold_past<Count, false, true>(f, largest) : fold_past<Count, false, false>(f, largest);
  return f.acc == nullptr ? fold_past<Count, true, true>(f, largest) : fold_past<Count, true, false>(f, largest);
}

void fold_run(const Fold& f, int32_t* largest) {
  if (f.count == 4) return fold_some<4>(f, largest);
  if (f.count == 2) return fold_some<2>(f, largest);
  fold_some<1>(f, largest);
}
