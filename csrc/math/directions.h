// How an arriving update u becomes the direction D that the optimizer steps along, one element at a time.
//
//   single      D = (gain*weight)*u
//               D = (gain*weight)*u + along*m, turned: weight and along are a tensor's (HeLoCo)
//   flush       D = (acc + (gain*weight)*u)*scale              FedBuff, FADAS: a buffer and its last update
//   blend       D = weight*((base - x) + gain*u)               FedAsync: the client's model minus the server's
//   mean        sum <- sum + (entering*new - leaving*old)      ACE, ACED: new is gain*u as the client's row stores it,
//               D = sum_scale*sum                              old is what the row stored before (dither: see below)
//   calibrated  c = acc + weight*(gain*u - old)                CA2FL; without a step acc = c
//               D = acc_scale*c + sum_scale*sum
//
// F is float, or a vector of them.
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

// Updates a sum over clients: sum += entering*new - leaving*old. This happens millions of times. The difference is
// exact for the stored rows. Only the addition rounds, in the sum's last place. Without a remedy, every change of less
// than half an ulp would be lost. With many clients that all move slowly, the sum would stand still until the rows are
// added up again. So a fraction of an ulp is added (sum_dither). The fraction is the same for all elements, differs
// between arrivals, and averages to zero. Small changes then add up. A sum of zero stays zero.
template <typename L, typename F>
FASTAGG_FN F exchanged(F sum, F entering, float entering_weight, F leaving, float leaving_weight, float dither) {
  const F power = L::from_bits(L::bits(sum) & 0x7f800000u);
  return sum + ((entering_weight * entering - leaving_weight * leaving) + power * dither);
}

// Returns the fraction of an ulp for one arrival, in -1/2..1/2, divided by 2^23. The fraction is a multiple of the
// golden ratio minus a whole number. Such fractions fill the range evenly even if there are few of them.
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
