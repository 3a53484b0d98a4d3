// Norms and sketches of an arriving update: what decides whether, and how far, the model moves.
#pragma once

#include <cstdint>

#include "step.h"

namespace fastagg::cpu {

// Sum of squares in double, in reduce.h's fixed shape (4 bytes per parameter); not finite exactly when some element is
// not finite.
double sum_squares(const Update& update);

// Both norms of AsyncFedED (paper 003, Eq. 6) in one read, 12 bytes per parameter, and FedAC's inner product.
struct Distances {
  double moved;   // |x - base|^2
  double update;  // |update|^2
  double inner;   // (x - base).update, where it is wanted; else 0
};
Distances distances(const Update& update, const float* x, const float* base, bool wants_inner);

// A random linear map to k numbers that keeps norms: E|sketch(u)|^2 = |u|^2, relative deviation sqrt(2/k).
// Each block of 1,024 elements is added, with random signs, to k buckets on a circle from a random one on; so two
// elements of a block never meet, and two of different blocks with probability 1/k. k >= 1024.
void sketch(const Update& update, int64_t k, uint64_t seed, float* out);

}  // namespace fastagg::cpu
