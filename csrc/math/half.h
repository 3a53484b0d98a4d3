// Converts fp16 and bf16 to fp32, exactly, in integer arithmetic.
//
// Most targets have instructions for this, but under different names and not in the baseline instruction set. These few
// integer operations vectorise everywhere and give the same bits everywhere. NaN stays NaN.
#pragma once

#include "portable.h"

namespace fastagg {

FASTAGG_FN float widen_bf16(uint16_t half) { return float_from_bits(static_cast<uint32_t>(half) << 16); }

FASTAGG_FN float widen_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  // Rebias the exponent (127 - 15 = 112) of normal numbers. Infinities and NaN get the top exponent.
  const uint32_t rebias = magnitude >= 0x7c00u ? (224u << 23) : (112u << 23);
  const uint32_t normal = (magnitude << 13) + rebias;
  // Subnormals are magnitude * 2^-24. This product is exact in fp32.
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 5.9604644775390625e-8f);
  return float_from_bits(sign | (magnitude < 0x0400u ? subnormal : normal));
}

}  // namespace fastagg
