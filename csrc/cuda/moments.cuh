// Steps with 8-bit moments (csrc/math/moments.h). One warp processes a scale block. A lane is a thread of the warp.
// Lanes have the block's elements as in halves.cuh. Lanes t and t+16, with t < 16, share words 4t..4t+3. A word has the
// codes of one element in each quarter of the block. Lane t uses the codes of the first and third quarter, and lane
// t+16 those of the second and fourth quarter.
#pragma once

#include "../math/moments.h"
#include "../math/optimizers.h"
#include "../math/philox.h"
#include "halves.cuh"

namespace fastagg::cuda {

constexpr int kHalfWarp = kWarp / 2;

struct Words {
  uint32_t of[kFour];
};

// A lane's words of a scale block's moments, as stored, and the block's units.
struct CodedMoments {
  Words m, v, vhat;
  float unit_m, unit_v;
};

template <bool Whole>
__device__ __forceinline__ Words load_words(const uint8_t* codes, int64_t begin) {
  const uint8_t* from = codes + begin + lane() % kHalfWarp * static_cast<int>(sizeof(Words));
  Words out;
  if constexpr (Whole) {
    const uint4 q = *reinterpret_cast<const uint4*>(from);
    out = {{q.x, q.y, q.z, q.w}};
  } else {
#pragma unroll
    for (int e = 0; e < kFour; ++e)
      out.of[e] =
          from[4 * e] | from[4 * e + 1] << 8 | from[4 * e + 2] << 16 | static_cast<uint32_t>(from[4 * e + 3]) << 24;
  }
  return out;
}

// Stores words that two lanes share. In each lane's `words`, the other lane's codes must be zeros.
__device__ __forceinline__ void store_words(bool whole, uint8_t* codes, int64_t begin, Words words) {
#pragma unroll
  for (int e = 0; e < kFour; ++e) words.of[e] |= __shfl_xor_sync(kAll, words.of[e], kHalfWarp);
  if (lane() >= kHalfWarp) return;
  uint8_t* to = codes + begin + lane() * static_cast<int>(sizeof(Words));
  if (whole) {
    __stwb(reinterpret_cast<uint4*>(to), uint4{words.of[0], words.of[1], words.of[2], words.of[3]});
  } else {
#pragma unroll
    for (int byte = 0; byte < kFour * 4; ++byte) to[byte] = static_cast<uint8_t>(words.of[byte / 4] >> (byte % 4 * 8));
  }
}

template <bool Whole>
__device__ __forceinline__ void load_block(CodedMoments& to, const Moments& from, int64_t begin, int64_t) {
  to.m = load_words<Whole>(from.coded_m, begin);
  to.unit_m = from.units_m[begin / kScaleBlock];
  if (from.coded_v != nullptr) {
    to.v = load_words<Whole>(from.coded_v, begin);
    to.unit_v = from.units_v[begin / kScaleBlock];
  }
  if (from.coded_vhat != nullptr) to.vhat = load_words<Whole>(from.coded_vhat, begin);
}

// Returns the random words for this lane's four words. Each half of the warp makes the block's 16 Philox calls.
__device__ __forceinline__ Words random_words(const RandomKey& key, int64_t index) {
  const int group = lane() % kHalfWarp / kFour;
  const Philox made = random_call(key, index, static_cast<uint32_t>(lane() % kHalfWarp));
  Words out;
#pragma unroll
  for (int e = 0; e < kFour; ++e) {
    const int from = lane() % kFour * kFour + e;
    const uint32_t a = __shfl_sync(kAll, made.a, from), b = __shfl_sync(kAll, made.b, from);
    const uint32_t c = __shfl_sync(kAll, made.c, from), d = __shfl_sync(kAll, made.d, from);
    out.of[e] = group == 0 ? a : group == 1 ? b : group == 2 ? c : d;
  }
  return out;
}

__device__ __forceinline__ uint32_t rotated(uint32_t word, int right) {
  return word >> right | word << ((32 - right) & 31);
}

// Returns a code's value divided by c*2^span.
__device__ __forceinline__ float relative(uint32_t code, uint32_t span) {
  const uint32_t base = (127u - span) << 23;
  return float_from_bits(code << kCut | base) - float_from_bits(base);
}
__device__ __forceinline__ float decoded_m(uint32_t code) {
  return float_from_bits((code & 0x80u) << 24 | bits_of(relative(code & 0x7fu, kSpanM)));
}
__device__ __forceinline__ float decoded_v(uint32_t code) { return relative(code & 0xffu, kSpanV); }

__device__ __forceinline__ uint32_t above(float magnitude, uint32_t random, uint32_t unit) {
  const uint32_t sum = bits_of(magnitude + float_from_bits(unit));
  return (sum + ((random & kCutMask) | (0u - unit))) >> kCut;
}
__device__ __forceinline__ uint32_t encoded_m(float value, uint32_t random, uint32_t unit) {
  const uint32_t bits = bits_of(value);
  return (bits >> 24 & 0x80u) | (above(float_from_bits(bits & 0x7fffffffu), random, unit) & 0x7fu);
}
__device__ __forceinline__ uint32_t encoded_v(float value, uint32_t random, uint32_t unit) {
  const float least = 0.125f * float_from_bits(unit);
  return above(value > least ? value : least, random, unit) & 0xffu;
}

// Limits a value to the largest storable magnitude, so that one overflow does not make a whole block NaN.
__device__ __forceinline__ float kept_finite(float value) {
  const float largest = float_from_bits(kLargest);
  value = value < largest ? value : largest;
  return value > -largest ? value : -largest;
}

// Steps one scale block along d. Writes the new x, codes and units. Code that all optimizers share is compiled once.
__device__ __forceinline__ void advance(const Optimizer& o, const CodedMoments& held, bool whole, int64_t begin,
                                        int64_t size, Halves d, Halves x) {
  const int odd = lane() / kHalfWarp;
  const auto place = [odd](int h) { return 16 * h + 8 * odd; };  // the place of this lane's code in a word, in bits
  const float full_m = full_of(held.unit_m, kSpanM), full_v = full_of(held.unit_v, kSpanV);
  const float decay1 = o.hyper.beta1 * full_m, decay2 = o.hyper.beta2 * full_v;
  const bool has_v = o.moments.coded_v != nullptr, has_vhat = o.moments.coded_vhat != nullptr;
  MomentValues<float> now[2][kFour] = {};
  if (decays(o.hyper)) each([&](int h, int e) { decay(d.half[h].v[e], x.half[h].v[e], o.hyper); });
  each([&](int h, int e) {
    now[h][e].m = decoded_m(held.m.of[e] >> place(h));
    // Elements past the vector's end get a direction of zero.
    if (!whole && begin + h * kHalf + lane() * kFour + e >= size) d.half[h].v[e] = 0.0f;
  });
  if (has_v) each([&](int h, int e) { now[h][e].v = decoded_v(held.v.of[e] >> place(h)); });
  if (has_vhat) each([&](int h, int e) { now[h][e].vhat = decoded_v(held.vhat.of[e] >> place(h)) * full_v; });
  visit_at(o.kind, Optimizers{}, [&](auto kind) {
    using Kind = decltype(kind);
    each([&](int h, int e) {
      if constexpr (Kind::kScalesV) now[h][e].v = now[h][e].v * full_v;
      Kind::template advance<Scalar>(d.half[h].v[e], now[h][e], o.hyper, decay1, decay2);
    });
  });
  float largest_m = 0.0f, largest_v = 0.0f;
  each([&](int h, int e) {
    largest_m = fmaxf(largest_m, fabsf(now[h][e].m));
    largest_v = fmaxf(largest_v, has_vhat ? now[h][e].vhat : now[h][e].v);
  });
  const float limit = float_from_bits(kLargest);
  float most_m = float_from_bits(warp_max(bits_of(largest_m))), most_v = float_from_bits(warp_max(bits_of(largest_v)));
  if (most_m > limit || most_v > limit) {
    each([&](int h, int e) {
      MomentValues<float>& moments = now[h][e];
      moments.m = kept_finite(moments.m);
      moments.v = kept_finite(moments.v);
      moments.vhat = kept_finite(moments.vhat);
    });
    most_m = most_m < limit ? most_m : limit;
    most_v = most_v < limit ? most_v : limit;
  }
  const uint32_t unit_m = unit_bits(bits_of(most_m), kSpanM), unit_v = unit_bits(bits_of(most_v), kSpanV);
  const bool same_unit = bits_of(held.unit_v) == unit_v;
  const Words random = random_words(o.moments.key, begin / kScaleBlock);
  Words m{}, v{}, vhat{};
  Halves out;
  visit_at(o.kind, Optimizers{}, [&](auto kind) {
    using Kind = decltype(kind);
    each([&](int h, int e) {
      const MomentValues<float> before{decoded_m(held.m.of[e] >> place(h)) * full_m,
                                       decoded_v(held.v.of[e] >> place(h)) * full_v,
                                       decoded_v(held.vhat.of[e] >> place(h)) * full_v};
      out.half[h].v[e] = Kind::template moved<Scalar>(d.half[h].v[e], x.half[h].v[e], before, now[h][e], o.hyper);
    });
  });
  each([&](int h, int e) { m.of[e] |= encoded_m(now[h][e].m, rotated(random.of[e], place(h)), unit_m) << place(h); });
  if (has_v)
    each([&](int h, int e) {
      // An element's m and v use random bits of different elements. So the rounding errors are nearly independent.
      const uint32_t bits = rotated(random.of[e], place(1 - h));
      const uint32_t code = encoded_v(now[h][e].v, bits, unit_v);
      v.of[e] |= code << place(h);
      if (!has_vhat) return;
      // Computes vhat = max(vhat, v) on codes. v and vhat are rounded with the same random bits, so the codes have the
      // values' order. If the unit has changed, vhat is first encoded in the new unit.
      uint32_t before = held.vhat.of[e] >> place(h) & 0xffu;
      if (!same_unit) before = encoded_v(decoded_v(before) * full_v, bits, unit_v);
      vhat.of[e] |= (before > code ? before : code) << place(h);
    });
  __syncwarp();  // waits until all lanes have read the old codes and units
  store_halves(whole, o.x_out, begin, size, out);
  store_words(whole, o.moments.coded_m, begin, m);
  if (has_v) store_words(whole, o.moments.coded_v, begin, v);
  if (has_vhat) store_words(whole, o.moments.coded_vhat, begin, vhat);
  if (lane() == 0) {
    o.moments.units_m[begin / kScaleBlock] = float_from_bits(unit_m);
    if (has_v) o.moments.units_v[begin / kScaleBlock] = float_from_bits(unit_v);
  }
}

}  // namespace fastagg::cuda
