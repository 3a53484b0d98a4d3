// Computes the direction D from an arriving update u, one element at a time. The optimizer steps along D.
//
//   single      D = (gain*weight)*u
//               D = (gain*weight)*u + along*m                  HeLoCo: each tensor has its own weight and along
//   flush       D = (acc + (gain*weight)*u)*scale              FedBuff, FADAS: acc sums the updates before u
//   blend       D = weight*((base - x) + gain*u)               FedAsync: base + gain*u is the client's model
//   mean        sum <- sum + (entering*new - leaving*old)      ACE, ACED: the client's row stores gain*u as `new`, and
//               D = sum_scale*sum                              stored `old` before (`exchanged` also adds a dither)
//   calibrated  c = acc + weight*(gain*u - old)                CA2FL: the client's row stored `old` before. Without a
//               D = acc_scale*c + sum_scale*sum                step, c becomes the new acc, and there is no D.
//
// x is the server's model and m its momentum. plan.h describes the other numbers. F is float, or a vector of floats.
#pragma once

#include "portable.h"

namespace fastagg {

enum DirectionKind : int { kSingle = 0, kFlush, kBlend, kMean, kCalibrated, kDirectionKinds };
constexpr const char* kDirectionNames[kDirectionKinds] = {"single", "flush", "blend", "mean", "calibrated"};

template <typename F>
FASTAGG_FN F turned_of(F u, float by, F m, float along) {
  return by * u + along * m;
}

template <typename F>
FASTAGG_FN F flush_of(F acc, F u, float by, float scale) {
  return (acc + by * u) * scale;
}

template <typename F>
FASTAGG_FN F blend_of(F base, F x, F u, float gain, float weight) {
  return weight * ((base - x) + gain * u);
}

// Returns a sum over clients after one client's row has changed from `leaving` to `entering`. Both are decoded values
// of the row, so quantisation adds no error. But the addition rounds to the sum's last place (ulp), and would lose
// every change of less than half an ulp. If many clients move slowly, the sum would not change until it is computed
// from all rows again. So a fraction of an ulp is added: `dither` times the sum's power of two. The fraction is the
// same for all elements, differs between arrivals, and averages to zero. So small changes have an effect on average. A
// sum that is zero or denormal gets no dither.
template <typename L, typename F>
FASTAGG_FN F exchanged(F sum, F entering, float entering_weight, F leaving, float leaving_weight, float dither) {
  const F power = L::from_bits(L::bits(sum) & 0x7f800000u);
  return sum + ((entering_weight * entering - leaving_weight * leaving) + power * dither);
}

// Returns the dither of one arrival: a fraction between -1/2 and 1/2, divided by 2^23. The fraction is the fractional
// part of the arrival's number times 0.618 (the golden ratio minus 1), minus 1/2. Even a few successive fractions cover
// the range evenly.
FASTAGG_FN float sum_dither(uint64_t arrival) {
  const int32_t odd = static_cast<int32_t>((arrival * 0x9E3779B97F4A7C15ull) >> 40) * 2 + 1 - (1 << 24);
  return static_cast<float>(odd) * (1.0f / (1 << 25)) * (1.0f / (1 << 23));
}

template <typename F>
FASTAGG_FN F with_term(F sum, F row, float weight) {
  return sum + weight * row;
}

template <typename F>
FASTAGG_FN F calibrated_of(F acc, F g, F old, float weight) {
  return acc + weight * (g - old);
}

template <typename F>
FASTAGG_FN F mixed_of(F c, float acc_scale, F sum, float sum_scale) {
  return c * acc_scale + sum * sum_scale;
}

}  // namespace fastagg
