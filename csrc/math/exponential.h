// The functions that a softmax needs: exp for arguments <= 0, and log for arguments >= 1. The functions use only IEEE
// additions, multiplications and divisions, so the results have the same bits on every machine. Results of a math
// library differ between machines in their last bits.
#pragma once

#include <string.h>

#include "portable.h"

namespace fastagg {

// Returns 2^n. `n` is a signed number modulo 2^32 (double: 2^64). For exp of a NaN, n is arbitrary, and signed
// arithmetic could overflow.
FASTAGG_FN float two_to(uint32_t n) {  // -126 <= n <= 127
  const uint32_t bits = (n + 127u) << 23;
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

FASTAGG_FN double two_to(uint64_t n) {  // -1022 <= n <= 1023
  const uint64_t bits = (n + 1023u) << 52;
  double out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

// Returns exp(x) for x <= 0, within 2 ulp. Below x = -87 (double: -708) the result is 0 instead, because the exact
// result is about as small as the smallest normal number. NaN stays NaN.
FASTAGG_FN float exp_negative(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  // x = n*log(2) + r with a whole n and |r| <= log(2)/2. Adding 1.5*2^23 rounds x/log(2) to n, and leaves n in the low
  // bits of the sum. log(2) is split into two parts. The first part has so few bits that its product with n is exact.
  const float shifted = clamped * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  const float value = p * two_to(bits - 0x4B400000u);
  return x < -87.0f ? 0.0f : value;
}

FASTAGG_FN double exp_negative(double x) {
  const double clamped = x < -708.0 ? -708.0 : x;
  const double shifted = clamped * 1.4426950408889634 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  uint64_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  const double r = (clamped - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800.0;  // Taylor series to the 13th power
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = (p * (r * r) + r) + 1.0;
  const double value = p * two_to(bits - uint64_t{0x4338000000000000});
  return x < -708.0 ? 0.0 : value;
}

// Returns log(x) for x >= 1 and below the largest double, within 2 ulp. With x = 2^k*f and f near 1, log x = k*log(2) +
// 2*artanh((f-1)/(f+1)). NaN and infinity are returned unchanged.
FASTAGG_FN double log_positive(double x) {
  if (!(x < 1.7976931348623157e308)) return x;
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int64_t k = (bits >> 52) - 1023;
  double f = x * two_to(static_cast<uint64_t>(-k));
  if (f > 1.4142135623730951) {
    f *= 0.5;
    k += 1;
  }
  const double s = (f - 1.0) / (f + 1.0), z = s * s;
  double p = 0.0;
  for (int odd = 23; odd >= 1; odd -= 2) p = p * z + 1.0 / odd;
  return static_cast<double>(k) * 0.6931471805599453 + 2.0 * s * p;
}

}  // namespace fastagg
