// Vector types, and the operations on them for each instruction set. Each table of kernels includes this file inside
// its namespace, with FASTAGG_LANES floats in a vector. Other vector code does not depend on the instruction set.
//
// GCC's and Clang's vector types have the usual arithmetic. Intrinsics are used where a compiler does not find the
// instruction, or uses two instructions in place of one. Masked (maskz) forms of AVX-512 intrinsics avoid a warning: in
// GCC 12, the unmasked forms start from an undefined value.

constexpr int64_t kFloats = FASTAGG_LANES;
constexpr int64_t kDoubles = kFloats / 2;
typedef float F __attribute__((vector_size(4 * kFloats)));
typedef float Half __attribute__((vector_size(kFloats > 8 ? 32 : 4 * kFloats)));  // at most eight floats
typedef uint32_t U __attribute__((vector_size(4 * kFloats)));
typedef int32_t I __attribute__((vector_size(4 * kFloats)));
typedef double D __attribute__((vector_size(4 * kFloats)));
typedef uint64_t W __attribute__((vector_size(4 * kFloats)));

#if FASTAGG_LANES == 16 && defined(__AVX512F__)
#define FASTAGG_512 1
#elif FASTAGG_LANES == 8 && defined(__AVX512VL__)
#define FASTAGG_256VL 1
#elif FASTAGG_LANES == 8 && defined(__AVX2__)
#define FASTAGG_256 1
#elif FASTAGG_LANES == 4 && defined(__SSE2__)
#define FASTAGG_128 1
#endif

template <typename V, typename T>
FASTAGG_FN V vector_at(const T* from) {
  V vector;
  memcpy(&vector, from, sizeof vector);
  return vector;
}

template <typename V, typename T>
FASTAGG_FN void put_vector(V value, T* to) {
  memcpy(to, &value, sizeof value);
}

// Selects `yes` in lanes where the mask's bits are all ones, and `no` where they are all zeros.
FASTAGG_FN F chosen(I mask, F yes, F no) { return (F)(((U)mask & (U)yes) | (~(U)mask & (U)no)); }

// Stores past the caches are weakly ordered. The fence orders these stores before all later stores of this thread.
FASTAGG_FN void fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// The operations that element functions need from a vector type. math/portable.h has the same operations for floats.
typedef F Vector;
struct Simd {
  typedef Vector F;
  static constexpr int64_t kWide = kFloats;

  FASTAGG_FN F load(const float* from) { return vector_at<F>(from); }
  FASTAGG_FN void store(F value, float* to) { put_vector(value, to); }

  // Stores a vector to memory past the caches. `to` must be aligned to the vector's size.
  FASTAGG_FN void stream(F value, float* to) {
#if defined(FASTAGG_512)
    _mm512_stream_ps(to, (__m512)value);
#elif defined(FASTAGG_256VL) || defined(FASTAGG_256)
    _mm256_stream_ps(to, (__m256)value);
#elif defined(FASTAGG_128)
    _mm_stream_ps(to, (__m128)value);
#else
    store(value, to);
#endif
  }

  FASTAGG_FN F root(F value) {
#if defined(FASTAGG_512)
    return (F)_mm512_maskz_sqrt_ps(0xffff, (__m512)value);
#elif defined(FASTAGG_256VL) || defined(FASTAGG_256)
    return (F)_mm256_sqrt_ps((__m256)value);
#elif defined(FASTAGG_128)
    return (F)_mm_sqrt_ps((__m128)value);
#elif defined(__ARM_NEON)
    return (F)vsqrtq_f32((float32x4_t)value);
#else
    F root;
    for (int64_t i = 0; i < kFloats; ++i) root[i] = sqrtf(value[i]);
    return root;
#endif
  }

  // Returns a > b ? a : b.
  FASTAGG_FN F larger(F a, F b) {
#if defined(FASTAGG_512)
    return (F)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(FASTAGG_256VL) || defined(FASTAGG_256)
    return (F)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(FASTAGG_128)
    return (F)_mm_max_ps((__m128)a, (__m128)b);
#else
    return chosen(a > b, a, b);
#endif
  }

  // Returns a < b ? a : b.
  FASTAGG_FN F smaller(F a, F b) {
#if defined(FASTAGG_512)
    return (F)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(FASTAGG_256VL) || defined(FASTAGG_256)
    return (F)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(FASTAGG_128)
    return (F)_mm_min_ps((__m128)a, (__m128)b);
#else
    return chosen(a < b, a, b);
#endif
  }

  // Returns a*b + c with one rounding.
  FASTAGG_FN F multiply_add(F a, F b, F c) {
#if defined(FASTAGG_512)
    return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(FASTAGG_256VL) || defined(FASTAGG_256)
    return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    F lanes;
    for (int64_t i = 0; i < kFloats; ++i) lanes[i] = fused_multiply_add(a[i], b[i], c[i]);
    return lanes;
#endif
  }

#if defined(FASTAGG_512)
  FASTAGG_FN Half larger(Half a, Half b) { return (Half)_mm256_max_ps((__m256)a, (__m256)b); }
  FASTAGG_FN Half multiply_add(Half a, Half b, Half c) {
    return (Half)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  }
#endif

  FASTAGG_FN U bits(F value) { return (U)value; }
  FASTAGG_FN F from_bits(U bits) { return (F)bits; }

  // Returns the smaller of a and b. Both must be below 2^31.
  FASTAGG_FN U least(U a, uint32_t b) {
    const U bounds = U{} + b;
#if defined(FASTAGG_512)
    return (U)_mm512_maskz_min_epu32(0xffff, (__m512i)a, (__m512i)bounds);
#elif defined(FASTAGG_256VL) || defined(FASTAGG_256)
    return (U)_mm256_min_epu32((__m256i)a, (__m256i)bounds);
#else
    const U over = (U)((I)a > (I)bounds);
    return (a & ~over) | (bounds & over);
#endif
  }

  FASTAGG_FN F sign(F value) {
    const F zero{};
    return (F)(((U)(value > zero) & 0x3f800000u) | ((U)(value < zero) & 0xbf800000u));
  }
};

// Returns the larger of `largest` and |value|. A NaN value is skipped.
FASTAGG_FN F larger_magnitude(F largest, F value) {
#if defined(FASTAGG_512)
  return (F)_mm512_maskz_range_ps(0xffff, (__m512)value, (__m512)largest, 0x0b);
#elif defined(FASTAGG_256VL)
  return (F)_mm256_maskz_range_ps(0xff, (__m256)value, (__m256)largest, 0x0b);
#else
  return Simd::larger((F)((U)value & 0x7fffffffu), largest);
#endif
}

// Returns (a & mask) | b.
FASTAGG_FN U pick(U a, uint32_t mask, U b) {
#if defined(FASTAGG_512)
  return (U)_mm512_ternarylogic_epi32((__m512i)a, _mm512_set1_epi32(static_cast<int>(mask)), (__m512i)b, 0xea);
#elif defined(FASTAGG_256VL)
  return (U)_mm256_ternarylogic_epi32((__m256i)a, _mm256_set1_epi32(static_cast<int>(mask)), (__m256i)b, 0xea);
#else
  return (a & mask) | b;
#endif
}

// Shifts left, or right if `Left` is negative.
template <int Left>
FASTAGG_FN U shift(U a) {
  if constexpr (Left >= 0)
    return a << Left;
  else
    return a >> -Left;
}

template <int Right>
FASTAGG_FN U rotate(U a) {
  if constexpr (Right == 0) return a;
#if defined(FASTAGG_512)
  return (U)_mm512_maskz_ror_epi32(0xffff, (__m512i)a, Right);
#elif defined(FASTAGG_256VL)
  return (U)_mm256_maskz_ror_epi32(0xff, (__m256i)a, Right);
#else
  return (a >> Right) | (a << (32 - Right));
#endif
}

// Returns the 64-bit products of the lower halves of 64-bit lanes.
FASTAGG_FN W widening_product(W x, W y) {
#if defined(FASTAGG_512)
  return (W)_mm512_maskz_mul_epu32(0xff, (__m512i)x, (__m512i)y);
#elif defined(FASTAGG_256VL) || defined(FASTAGG_256)
  return (W)_mm256_mul_epu32((__m256i)x, (__m256i)y);
#elif defined(FASTAGG_128)
  return (W)_mm_mul_epu32((__m128i)x, (__m128i)y);
#else
  return (x & 0xffffffffu) * (y & 0xffffffffu);
#endif
}

// Converts half a vector's floats to double. With __builtin_convertvector, GCC would split four or eight floats in two,
// and move the upper half through memory.
typedef float HalfF __attribute__((vector_size(2 * kFloats)));
FASTAGG_FN D widened(HalfF values) {
#if defined(FASTAGG_512)
  return (D)_mm512_maskz_cvtps_pd(0xff, (__m256)values);
#elif defined(FASTAGG_256VL) || defined(FASTAGG_256)
  return (D)_mm256_cvtps_pd((__m128)values);
#else
  return __builtin_convertvector(values, D);
#endif
}

// Returns sum + a*b. a and b must be converted floats. Their product is exact in double, so a fused operation gives the
// same bits as a multiplication and an addition.
FASTAGG_FN D add_product(D sum, D a, D b) {
#if defined(FASTAGG_512)
  return (D)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)sum);
#elif defined(FASTAGG_256VL) || defined(FASTAGG_256)
  return (D)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)sum);
#else
  return sum + a * b;
#endif
}
