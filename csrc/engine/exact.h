// An exact sum of fp32 numbers that are not negative. A number that is added and later removed leaves no rounding
// error. The sum is stored as an integer of 320 bits, in units of the smallest positive float.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace fastagg::engine {

class ExactSum {
 public:
  void add(float value) { change(value, false); }
  void remove(float value) { change(value, true); }

  // Returns the sum, rounded once to the nearest double.
  double value() const {
    int top = kLimbs - 1;
    while (top > 0 && limbs_[top] == 0) --top;
    if (limbs_[top] == 0) return 0.0;
    const int spare = __builtin_clzll(limbs_[top]);
    uint64_t leading = limbs_[top] << spare;
    bool rest = false;  // whether any bit below the leading 64 bits is set
    if (top > 0) {
      if (spare > 0) leading |= limbs_[top - 1] >> (64 - spare);
      rest = (limbs_[top - 1] << spare) != 0;
      for (int i = 0; i < top - 1; ++i) rest = rest || limbs_[i] != 0;
    }
    return std::ldexp(static_cast<double>(leading | (rest ? 1u : 0u)), 64 * top - spare - kSmallest);
  }

 private:
  static constexpr int kLimbs = 5, kSmallest = 149;

  // Adds `value`, or removes `value` if `negative`. `value` must be finite, at least 0, and added before it is removed.
  void change(float value, bool negative) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t exponent = bits >> 23 & 255u;
    const uint64_t mantissa = (bits & 0x7fffffu) | (exponent > 0 ? 0x800000u : 0u);
    const int shift = exponent > 0 ? static_cast<int>(exponent) - 1 : 0, limb = shift / 64, by = shift % 64;
    uint64_t parts[2] = {mantissa << by, by > 40 ? mantissa >> (64 - by) : 0};
    uint64_t carry = 0;
    for (int i = limb; i < kLimbs; ++i) {
      const uint64_t part = i - limb < 2 ? parts[i - limb] : 0;
      if (i - limb >= 2 && carry == 0) break;
      const uint64_t before = limbs_[i];
      const uint64_t once = negative ? before - part : before + part;
      const uint64_t twice = negative ? once - carry : once + carry;
      carry = negative ? (before < part) | (once < carry) : (once < before) | (twice < once);
      limbs_[i] = twice;
    }
  }

  uint64_t limbs_[kLimbs] = {};
};

}  // namespace fastagg::engine
