// Loops over fp32 vectors that compute a direction and take an optimizer's step. There is one loop for every
// combination of a direction and an optimizer that is used. Included by kernels.inl.
//
// A direction is a struct. `reads` visits the vectors that the loop reads, so that they can be prefetched. `of`
// computes D at place i with the operations L. A run uses vectors, and single elements at its end, with the same bits.

FASTAGG_FN void ahead_of(const void* pointer) { __builtin_prefetch(pointer, 0, 3); }

constexpr int64_t kLine = 16;   // the number of floats in a cache line
constexpr int64_t kStrip = 64;  // the number of elements between two rounds of prefetches

struct ScalarLanes : Scalar {
  static constexpr int64_t kWide = 1;
  FASTAGG_FN F load(const float* from) { return *from; }
  FASTAGG_FN void store(F value, float* to) { *to = value; }
  FASTAGG_FN void stream(F value, float* to) { *to = value; }
};

template <typename L, bool Streams>
FASTAGG_FN void put(typename L::F value, float* to, bool streams) {
  if constexpr (Streams) {
    if (streams) {
      L::stream(value, to);
      return;
    }
  }
  L::store(value, to);
}

// Limits the magnitude of a value. `limit` has a float's bits. A NaN gets the magnitude `limit`.
template <typename L>
FASTAGG_FN typename L::F limited(typename L::F value, uint32_t limit) {
  const auto bits = L::bits(value);
  return L::from_bits((bits & 0x80000000u) | L::least(bits & 0x7fffffffu, limit));
}

template <typename L>
FASTAGG_FN typename L::F update_at(const Run& r, int64_t i) {
  return limited<L>(L::load(r.update + i), r.limit);
}

struct SingleLoop {
  static constexpr bool kReadsX = false;
  template <typename Visit>
  FASTAGG_FN void reads(const Run& r, Visit visit) {
    visit(r.update);
  }
  template <typename L, bool Streams, typename V>
  FASTAGG_FN V of(const Run& r, int64_t i, V) {
    return (r.gain * r.weight) * update_at<L>(r, i);
  }
};

struct TurnedLoop {
  static constexpr bool kReadsX = false;
  template <typename Visit>
  FASTAGG_FN void reads(const Run& r, Visit visit) {
    visit(r.update), visit(r.m);
  }
  template <typename L, bool Streams, typename V>
  FASTAGG_FN V of(const Run& r, int64_t i, V) {
    return turned_of(update_at<L>(r, i), r.gain * r.weight, V(L::load(r.m + i)), r.turn);
  }
};

struct FlushLoop {
  static constexpr bool kReadsX = false;
  template <typename Visit>
  FASTAGG_FN void reads(const Run& r, Visit visit) {
    visit(r.update), visit(r.acc);
  }
  template <typename L, bool Streams, typename V>
  FASTAGG_FN V of(const Run& r, int64_t i, V) {
    return flush_of(L::load(r.acc + i), update_at<L>(r, i), r.gain * r.weight, r.scale);
  }
};

struct BlendLoop {
  static constexpr bool kReadsX = true;
  template <typename Visit>
  FASTAGG_FN void reads(const Run& r, Visit visit) {
    visit(r.update), visit(r.base);
  }
  template <typename L, bool Streams, typename V>
  FASTAGG_FN V of(const Run& r, int64_t i, V x) {
    return blend_of(L::load(r.base + i), x, update_at<L>(r, i), r.gain, r.weight);
  }
};

// Both: whether there are an old row to read and a new row to write. Otherwise either row, or both, may be missing.
template <bool Both>
struct MeanLoop {
  static constexpr bool kReadsX = false;
  template <typename Visit>
  FASTAGG_FN void reads(const Run& r, Visit visit) {
    visit(r.update), visit(r.sum);
    if (Both || r.read != nullptr) visit(r.read);
  }
  template <typename L, bool Streams, typename V>
  FASTAGG_FN V of(const Run& r, int64_t i, V) {
    const V g = r.gain * update_at<L>(r, i);
    V old{};
    if (Both || r.read != nullptr) old = L::load(r.read + i);
    if (Both || r.write != nullptr) put<L, Streams>(g, r.write + i, r.stream_write);
    const V sum = exchanged<L>(L::load(r.sum + i), g, r.entering, old, r.leaving, r.dither);
    L::store(sum, r.sum + i);
    return sum * r.sum_scale;
  }
};

template <bool Steps>
struct CalibratedLoop {
  static constexpr bool kReadsX = false;
  template <typename Visit>
  FASTAGG_FN void reads(const Run& r, Visit visit) {
    visit(r.update);
    if (r.acc != nullptr) visit(r.acc);
    if (r.read != nullptr) visit(r.read);
    if (Steps) visit(r.sum);
  }
  template <typename L, bool Streams, typename V>
  FASTAGG_FN V of(const Run& r, int64_t i, V) {
    const V g = r.gain * update_at<L>(r, i);
    V old{}, acc{};
    if (r.read != nullptr) old = L::load(r.read + i);
    if (r.acc != nullptr) acc = L::load(r.acc + i);
    if (r.write != nullptr) put<L, Streams>(g, r.write + i, r.stream_write);
    const V c = calibrated_of(acc, g, old, r.weight);
    if constexpr (Steps) return mixed_of(c, r.acc_scale, L::load(r.sum + i), r.sum_scale);
    return c;
  }
};

struct SumLoop {
  static constexpr bool kReadsX = false;
  template <typename Visit>
  FASTAGG_FN void reads(const Run& r, Visit visit) {
    visit(r.sum);
  }
  template <typename L, bool Streams, typename V>
  FASTAGG_FN V of(const Run& r, int64_t i, V) {
    return L::load(r.sum + i) * r.sum_scale;
  }
};

struct DirectionOutput {};
struct SumMove {};

template <typename Towards, typename Does, typename L, bool Streams>
FASTAGG_FN void fused_at(const Run& r, int64_t i) {
  typedef typename L::F Of;
  constexpr bool kSteps = !__is_same(Does, DirectionOutput) && !__is_same(Does, SumMove);
  Of x{};
  if constexpr (kSteps || Towards::kReadsX) x = L::load(r.x + i);
  const Of d = Towards::template of<L, Streams>(r, i, x);
  if constexpr (__is_same(Does, DirectionOutput)) put<L, Streams>(d, r.out + i, r.stream_out);
  if constexpr (kSteps) {
    MomentValues<Of> s{};
    if constexpr (Does::kM) s.m = L::load(r.m + i);
    if constexpr (Does::kV) s.v = L::load(r.v + i);
    if constexpr (Does::kVhat) s.vhat = L::load(r.vhat + i);
    const MomentValues<Of> before = s;
    Does::template advance<L>(d, s, r.hyper, r.hyper.beta1, r.hyper.beta2);
    if constexpr (Does::kM) L::store(s.m, r.m + i);
    if constexpr (Does::kV) L::store(s.v, r.v + i);
    if constexpr (Does::kVhat) L::store(s.vhat, r.vhat + i);
    put<L, Streams>(Does::template moved<L>(d, x, before, s, r.hyper), r.out + i, r.stream_out);
  }
}

template <typename Does>
FASTAGG_FN void ask_for_state(const Run& r, int64_t i) {
  if constexpr (!__is_same(Does, DirectionOutput) && !__is_same(Does, SumMove)) {
    ahead_of(r.x + i);
    if constexpr (Does::kM) ahead_of(r.m + i);
    if constexpr (Does::kV) ahead_of(r.v + i);
    if constexpr (Does::kVhat) ahead_of(r.vhat + i);
  }
}

template <typename Towards, typename Does>
void fused(const Run& call) {
  const Run r = call;  // a copy, so that the compiler knows that no store changes it
  int64_t i = 0;
  if (r.ahead != 0 || r.stream_out || r.stream_write) {
    for (; i + kStrip <= r.n; i += kStrip) {
      if (r.ahead != 0)
        for (int64_t line = i + r.ahead; line < i + r.ahead + kStrip; line += kLine) {
          Towards::reads(r, [=](const float* from) FASTAGG_INLINE { ahead_of(from + line); });
          ask_for_state<Does>(r, line);
        }
#pragma GCC unroll 4
      for (int64_t k = i; k < i + kStrip; k += kFloats) fused_at<Towards, Does, Simd, true>(r, k);
    }
    if (r.stream_out || r.stream_write) fence();
  } else {
#pragma GCC unroll 2
    for (; i + kFloats <= r.n; i += kFloats) fused_at<Towards, Does, Simd, false>(r, i);
  }
  for (; i < r.n; ++i) fused_at<Towards, Does, ScalarLanes, false>(r, i);
}
