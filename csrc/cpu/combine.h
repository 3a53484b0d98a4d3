// Several updates at once: their elements combined (math/combine.h), and sums over pairs of them.
#pragma once

#include <vector>

#include "../math/combine.h"
#include "../plan.h"
#include "desks.h"

namespace fastagg::cpu {

// out = n <= 1,024 elements of each row, times its weight, combined. At least one row and at most kMostCombined.
void combine_rows(const Combining& how, const float* const* rows, int64_t count, const float* weights, int64_t n,
                  float* out);

// Puts elements at..at+n-1 of each update where they can be read as floats: the place's rows.
struct Kernels;
void rows_at(const std::vector<Held>& held, const Kernels& table, int64_t at, int64_t n, const Desks::Place& place);

// out = what `combine` makes of whole updates, for which the desks are.
void combine(const std::vector<Held>& held, const Combine& combine, Desks& desks, float* out);

// What a runner's pair_sums (runner.h) tell. Each update is read once.
std::vector<double> pair_sums(const std::vector<Held>& held, int64_t size, const uint8_t* wanted, bool apart);

}  // namespace fastagg::cpu
