// Combines several updates, one element at a time. A row is the vector of one update. If at most `cut` rows, and less
// than half of all, have arbitrary values, a trimmed mean or a mean around the median stays close to the other rows.
//
//   mean      0 + w_1*row_1 + w_2*row_2 + ..., added in this order
//   trimmed   the mean of w_k*row_k without the `cut` smallest and the `cut` largest values (Yin et al. 2018,
//             Definition 2). With the largest possible `cut`, this is the median.
//   around    the mean of the count - cut values of w_k*row_k that are nearest to the median of all values. Of two
//             equally near values, the smaller one is taken (mean around the median, Xie et al. 2018).
//
// `trimmed` and `around` sort the values of each element with a sorting network. A sorting network compares the same
// places whatever the values are. So vector instructions can sort the values of several elements at the same time.
#pragma once

#include "list.h"
#include "portable.h"

namespace fastagg {

struct Mean {
  static constexpr const char* kName = "mean";
};
struct TrimmedMean {
  static constexpr const char* kName = "trimmed";
};
struct MeanAroundMedian {
  static constexpr const char* kName = "around";
};
using CombineKinds = List<Mean, TrimmedMean, MeanAroundMedian>;
constexpr int64_t kMostCombined = 1024;  // the largest number of rows that can be combined
// A sum over a pair of rows adds products, or squared differences, in blocks of 1,024 elements. A block has 8 partial
// sums, the lanes. Element i's term is added to lane i % 8. The block's sum is ((0+1) + (2+3)) + ((4+5) + (6+7)) over
// the lanes. The sums of blocks are added in order within a group, and the groups' sums as in reduce.h.
constexpr int64_t kSumLanes = 8;

// The settings of a combination. `kind` is the place in CombineKinds. TrimmedMean leaves out `cut` values at each end.
// MeanAroundMedian leaves out `cut` values in total. Mean ignores `cut`.
struct CombineSetting {
  int kind = place_in<Mean>(CombineKinds{});
  int64_t cut = 0;
};

// Calls visit(i, j), with i < j, for every comparison of Batcher's odd-even merge sort of `count` values. `visit` must
// put the smaller value at place i and the larger value at place j.
template <typename Visit>
FASTAGG_FN constexpr void sorting_network(int64_t count, Visit&& visit) {
  for (int64_t sorted = 1; sorted < count; sorted *= 2)
    for (int64_t apart = sorted; apart >= 1; apart /= 2)
      for (int64_t first = apart % sorted; first + apart < count; first += 2 * apart)
        for (int64_t i = first; i < first + apart && i + apart < count; ++i)
          if (i / (2 * sorted) == (i + apart) / (2 * sorted)) visit(i, i + apart);
}

// Sorts two values. -0 and +0 compare as equal, and may both become -0 or both become +0. The sums of sorted values do
// not depend on this, because every sum starts from +0, and +0 plus -0 is +0.
template <typename L, typename F>
FASTAGG_FN void exchange(F& first, F& second) {
  const F smaller = L::smaller(first, second);
  second = L::larger(first, second);
  first = smaller;
}

// The sorting network for N values. Comparison i is between the places low[i] and high[i].
template <int N>
struct Network {
  uint8_t low[N * 8] = {}, high[N * 8] = {};
  int size = 0;
  constexpr Network() {
    sorting_network(N, [this](int64_t i, int64_t j) {
      low[size] = static_cast<uint8_t>(i);
      high[size++] = static_cast<uint8_t>(j);
    });
  }
};
template <int N>
constexpr Network<N> kNetwork{};

// Sorts N values, by recursion instead of a loop. So all places in `values` are constants, and the values stay in
// registers.
template <int N, typename L, int At = 0, typename F>
FASTAGG_FN void sort(F* values) {
  if constexpr (At < kNetwork<N>.size) {
    constexpr int kLow = kNetwork<N>.low[At], kHigh = kNetwork<N>.high[At];
    exchange<L>(values[kLow], values[kHigh]);
    sort<N, L, At + 1>(values);
  }
}

// Returns the mean of `count` sorted values without `cut` values at each end. at(k) is the k-th value, from 0.
template <typename F, typename At>
FASTAGG_FN F trimmed_mean(int64_t count, int64_t cut, At at) {
  F sum{};
  for (int64_t k = cut; k < count - cut; ++k) sum = sum + at(k);
  return sum / static_cast<float>(count - 2 * cut);
}

// Returns the mean of those count - cut of the `count` sorted values that are nearest to the median. at(k) is the k-th
// value, from 0. The chosen values are neighbours in the sorted order, so two values that are count - cut places apart
// are never both chosen: the farther from the median is left out, or the upper one if both are equally near.
// chosen(condition, yes, no) returns `yes` where the condition holds, and otherwise `no`.
template <typename F, typename At, typename Chosen>
FASTAGG_FN F mean_around(int64_t count, int64_t cut, At at, Chosen chosen) {
  const int64_t kept = count - cut;
  const F median = (at((count - 1) / 2) + at(count / 2)) * 0.5f;
  F sum{};
  for (int64_t k = 0; k < count; ++k) {
    F counts = at(k);
    if (k < cut) counts = chosen(at(k + kept) - median < median - at(k), F{}, counts);
    if (k >= kept) counts = chosen(at(k) - median < median - at(k - kept), counts, F{});
    sum = sum + counts;
  }
  return sum / static_cast<float>(kept);
}

}  // namespace fastagg
