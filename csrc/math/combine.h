// Combines the rows of several updates into one number for each element. A few arbitrary rows cannot move a trimmed
// mean or a mean around the median far.
//
//   mean      0 + w_1*row_1 + w_2*row_2 + ..., added in this order
//   trimmed   the mean of w_k*row_k without the `cut` smallest and the `cut` largest (Yin et al. 2018, Definition 2);
//             the median cuts all but the middle one or two
//   around    the mean of the count - cut values of w_k*row_k that are nearest to their median, where of two equally
//             near ones the smaller counts (mean around the median, Xie et al. 2018)
//
// `trimmed` and `around` sort the values of an element. A network compares the same places whatever the values are, so
// a vector of elements is sorted at once.
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
constexpr int64_t kMostCombined = 1024;  // rows
// Sums over pairs of rows have 8 lanes. Element i's product goes to lane i % 8. After a block of 1,024 elements the
// lanes are folded four by four. Blocks are added in order to their group (reduce.h).
constexpr int64_t kSumLanes = 8;

// How elements are combined. `kind`: the place in CombineKinds. `cut`: the number of values cut, for TrimmedMean at
// each end, for MeanAroundMedian in all.
struct CombineSetting {
  int kind = place_in<Mean>(CombineKinds{});
  int64_t cut = 0;
};

// Batcher's odd-even merge sort of `count` values: visit(i, j) with i < j puts the smaller value at i.
template <typename Visit>
FASTAGG_FN constexpr void sorting_network(int64_t count, Visit&& visit) {
  for (int64_t sorted = 1; sorted < count; sorted *= 2)
    for (int64_t apart = sorted; apart >= 1; apart /= 2)
      for (int64_t first = apart % sorted; first + apart < count; first += 2 * apart)
        for (int64_t i = first; i < first + apart && i + apart < count; ++i)
          if (i / (2 * sorted) == (i + apart) / (2 * sorted)) visit(i, i + apart);
}

// -0 and +0 are equal, and the network decides which of them comes first. So sums start from +0, which fixes the sign.
template <typename L, typename F>
FASTAGG_FN void exchange(F& first, F& second) {
  const F smaller = L::smaller(first, second);
  second = L::larger(first, second);
  first = smaller;
}

// The sorting network for a constant number of values.
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

// Sorts N values. It is a recursion and not a loop, so that places are constants and values stay in registers.
template <int N, typename L, int At = 0, typename F>
FASTAGG_FN void sort(F* values) {
  if constexpr (At < kNetwork<N>.size) {
    constexpr int kLow = kNetwork<N>.low[At], kHigh = kNetwork<N>.high[At];
    exchange<L>(values[kLow], values[kHigh]);
    sort<N, L, At + 1>(values);
  }
}

// Returns the trimmed mean of sorted values. at(k) is the k-th value.
template <typename F, typename At>
FASTAGG_FN F trimmed_mean(int64_t count, int64_t cut, At at) {
  F sum{};
  for (int64_t k = cut; k < count - cut; ++k) sum = sum + at(k);
  return sum / static_cast<float>(count - 2 * cut);
}

// Returns the mean around the median of sorted values. The values that count are a window of neighbours. The window
// starts at the smallest value, and moves up while the entering value is nearer to the median than the leaving value.
// chosen(condition, yes, no) selects by element.
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
