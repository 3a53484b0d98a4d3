// How the rows of several updates become one number for each element, whatever a few of them hold.
//
//   mean      0 + w_1*row_1 + w_2*row_2 + ..., added in this order
//   trimmed   the mean of w_k*row_k without the `cut` smallest and the `cut` largest (Yin et al. 2018, Definition 2);
//             the median is what cuts all but the middle one or two
//   around    the mean of the count - cut values of w_k*row_k that are nearest to their median; of two that are equally
//             near the smaller one (mean around the median, Xie et al. 2018)
//
// All but the first sort the values of an element. A network compares the same places whatever the values are, so a
// vector of elements is sorted at once.
#pragma once

#include "list.h"
#include "portable.h"

namespace fastagg {

struct Mean {
  static constexpr const char* kName = "mean";
};
struct Trimmed {
  static constexpr const char* kName = "trimmed";
};
struct Around {
  static constexpr const char* kName = "around";
};
using Combines = List<Mean, Trimmed, Around>;
constexpr int64_t kMostCombined = 1024;  // rows

// Batcher's odd-even merge sort of `count` values: visit(i, j) with i < j puts the smaller value at i.
template <typename Visit>
FASTAGG_FN constexpr void sorting_network(int64_t count, Visit&& visit) {
  for (int64_t sorted = 1; sorted < count; sorted *= 2)
    for (int64_t apart = sorted; apart >= 1; apart /= 2)
      for (int64_t first = apart % sorted; first + apart < count; first += 2 * apart)
        for (int64_t i = first; i < first + apart && i + apart < count; ++i)
          if (i / (2 * sorted) == (i + apart) / (2 * sorted)) visit(i, i + apart);
}

// -0 and +0 are equal, and which of them comes first depends on the network: what is made of sorted values begins with
// +0, which has one sign.
template <typename L, typename F>
FASTAGG_FN void exchange(F& first, F& second) {
  const F smaller = L::smaller(first, second);
  second = L::larger(first, second);
  first = smaller;
}

}  // namespace fastagg
