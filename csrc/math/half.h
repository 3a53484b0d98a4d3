// Converts fp16 and bf16 to fp32, exactly. NaN stays NaN.
//
// Most processors have instructions for these conversions, but the baseline instruction sets lack them. The few
// operations used here vectorise with every instruction set and always give the same bits.
#pragma once

#include "portable.h"

namespace fastagg {

FASTAGG_FN float widen_bf16(uint16_t half) { return float_from_bits(static_cast<uint32_t>(half) << 16); }

FASTAGG_FN float widen_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  // The exponent biases of fp32 and fp16 differ by 127 - 15 = 112. A normal number's exponent is raised by this
  // difference. Infinities and NaN get the largest exponent.
  const uint32_t rebias = magnitude >= 0x7c00u ? (224u << 23) : (112u << 23);
  const uint32_t normal = (magnitude << 13) + rebias;
  // The value of a subnormal number is magnitude*2^-24. This product is exact in fp32.
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 5.9604644775390625e-8f);
  return float_from_bits(sign | (magnitude < 0x0400u ? subnormal : normal));
}

}  // namespace fastagg
