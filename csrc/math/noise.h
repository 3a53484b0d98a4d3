// Computes Gaussian noise from ChaCha20's words, with IEEE operations only. So the bits are the same on every machine.
//
// The method of Box and Muller multiplies sqrt(-2*log(u)), with a random u in (0, 1], by the cosine and by the sine of
// a random angle. u has 40 random bits and is at least 2^-41, so no result's magnitude is above kLargestNormal. The
// angle has 24 random bits. log, sine and cosine are computed in fp32 with the polynomials of the Cephes library.
//
// A block of 1,024 elements uses 64 calls of ChaCha20. Call j of block b has the counter 64*b + j. The call's words w
// and w + 8, with w in 0..7, make the numbers for the elements 64*w + j and 64*(w + 8) + j. So neighbouring elements
// use neighbouring calls, which suits vector instructions.
#pragma once

#include "chacha.h"

namespace fastagg {

constexpr int64_t kNoiseCalls = 64;
constexpr double kLargestNormal = 7.55;  // sqrt(82*log(2)), with a margin for rounding

// Returns log(u) for u in 2^-41..1.
template <typename L, typename F = typename L::F>
FASTAGG_FN F log_of(F u) {
  const auto bits = L::bits(u);
  const auto exponent = L::whole(bits - 0x3f3504f3u) >> 23;  // the exponent of u/sqrt(1/2), so that 1 + f is near 1
  const F f = L::from_bits(bits - (L::word(exponent) << 23)) - 1.0f, z = f * f, e = L::number(exponent);
  F p = L::multiply_add(f, F{} + 7.0376836292e-2f, F{} + -1.1514610310e-1f);
  p = L::multiply_add(p, f, F{} + 1.1676998740e-1f);
  p = L::multiply_add(p, f, F{} + -1.2420140846e-1f);
  p = L::multiply_add(p, f, F{} + 1.4249322787e-1f);
  p = L::multiply_add(p, f, F{} + -1.6668057665e-1f);
  p = L::multiply_add(p, f, F{} + 2.0000714765e-1f);
  p = L::multiply_add(p, f, F{} + -2.4999993993e-1f);
  p = L::multiply_add(p, f, F{} + 3.3333331174e-1f);
  p = L::multiply_add(p, f, F{} - 0.5f);
  return L::multiply_add(e, F{} + 0.69314718f, L::multiply_add(p, z, f));
}

template <typename L, typename U, typename F>
FASTAGG_FN void normal_pair(U a, U b, F& first, F& second) {
  const F high = L::number(L::whole(a >> 8)), low = L::number(L::whole(((a & 0xffu) << 9) | ((b & 0xffu) << 1) | 1u));
  const F radius = L::root(log_of<L>(high * 0x1p-24f + low * 0x1p-41f) * -2.0f);
  // x is an angle in -pi/4..pi/4. The upper two bits of b select the quadrant.
  const F x = L::number(L::whole(((b >> 7) & 0x7ffffeu) | 1u) - 0x400000) * (0.78539816339744831f * 0x1p-22f);
  const F z = x * x;
  F sine = L::multiply_add(z, F{} - 1.9515295891e-4f, F{} + 8.3321608736e-3f);
  sine = L::multiply_add(L::multiply_add(sine, z, F{} - 1.6666654611e-1f), z * x, x);
  F cosine = L::multiply_add(z, F{} + 2.443315711809948e-5f, F{} - 1.388731625493765e-3f);
  cosine = L::multiply_add(L::multiply_add(cosine, z, F{} + 4.166664568298827e-2f), z, F{} - 0.5f);
  cosine = L::multiply_add(cosine, z, F{} + 1.0f);
  const U swap = L::word(L::whole(b << 1) >> 31), both = (L::bits(sine) ^ L::bits(cosine)) & swap;
  first = radius * L::from_bits((L::bits(cosine) ^ both) ^ ((b ^ (b << 1)) & 0x80000000u));
  second = radius * L::from_bits((L::bits(sine) ^ both) ^ (b & 0x80000000u));
}

template <typename F>
FASTAGG_FN F with_noise(F d, float scale, F normal) {
  return d + scale * normal;
}

// The two operations of correlated noise (plan.h). without_past() subtracts omega times one past noise from the new
// noise. next_past() multiplies a past noise by theta, and adds the new noise after all subtractions.
FASTAGG_FN float without_past(float fresh, float omega, float past) { return fresh - omega * past; }
FASTAGG_FN float next_past(float past, float theta, float fresh) { return theta * past + fresh; }

}  // namespace fastagg
