// Several updates at once: their elements combined (math/combine.h), and how far they are from each other.
#pragma once

#include <vector>

#include "../math/combine.h"
#include "../plan.h"
#include "desks.h"

namespace fastagg::cpu {

// How elements are combined: the place in Combines, and how many are cut: of trimmed at each end, of around in all.
struct Combining {
  int kind = place_in<Mean>(Combines{});
  int64_t cut = 0;
};

// out = n <= 1,024 elements of each row, times its weight, combined. At least one row and at most kMostCombined.
void combine_rows(const Combining& how, const float* const* rows, int64_t count, const float* weights, int64_t n,
                  float* out);

// Puts elements at..at+n-1 of each update where they can be read as floats: the place's rows.
struct Kernels;
void rows_at(const std::vector<Held>& held, const Kernels& table, int64_t at, int64_t n, const Desks::Place& place);

// out = what `combine` makes of whole updates, for which the desks are.
void combine(const std::vector<Held>& held, const Combine& combine, Desks& desks, float* out);

// [count, count]: the squared distances of all updates, each times what it is multiplied by. In double, and added in a
// fixed order; where two are so near that their difference is lost in their products, it is added up itself. On the
// diagonal is the square of the update's own norm. Reads each update once, or twice if some are near.
std::vector<double> squared_distances(const std::vector<Held>& held, int64_t size);

}  // namespace fastagg::cpu
