// Combines updates, and computes sums over pairs of updates, in blocks of 1,024 elements (combine.h).
#include "combine.h"

#include <algorithm>

#include "../math/reduce.h"
#include "blocks.h"

namespace fastagg::cpu {

void rows_at(const std::vector<WeightedUpdate>& held, const Kernels& table, int64_t at, int64_t n,
             const Desks::DeskPlace& place) {
  for (size_t k = 0; k < held.size(); ++k) {
    BlockReader reader(*held[k].update, table, at);
    const bool stays = reader.plain(at) >= n;
    place.rows()[k] = reader.block(at, n);
    if (stays) continue;
    std::memcpy(place.block(k), place.rows()[k], static_cast<size_t>(n) * sizeof(float));
    place.rows()[k] = place.block(k);
  }
}

void combine_rows(const CombineSetting& how, const float* const* rows, int64_t count, const float* weights, int64_t n,
                  float* out) {
  kernels().combine[how.kind]({rows, weights, count, how.cut, n, tuning().prefetch, out});
}

void combine(const std::vector<WeightedUpdate>& held, const Combiner& combine, Desks& desks, float* out) {
  const auto count = static_cast<int64_t>(held.size());
  for_each_part(held.front().update->size, 4 * (count + 1), [&](int64_t begin, int64_t end) {
    const Desks::DeskPlace place(desks);
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      rows_at(held, kernels(), at, n, place);
      combine_rows(combine.how(count), place.rows(), count, desks.weights(), n, out + at);
    }
  });
}

std::vector<double> pair_sums(const std::vector<WeightedUpdate>& held, int64_t size, const uint8_t* wanted,
                              bool apart) {
  const size_t pairs = held.size() * held.size();
  const int64_t count = static_cast<int64_t>(held.size()), groups = (size + kGroup - 1) / kGroup;
  std::vector<double> sums(static_cast<size_t>(groups) * pairs), totals(pairs);
  Desks desks(held.size());
  for (size_t k = 0; k < held.size(); ++k) desks.weights()[k] = held[k].by;
  const Kernels& table = kernels();
  auto group = [&](int64_t index) {
    const Desks::DeskPlace place(desks);
    double* const to = sums.data() + static_cast<size_t>(index) * pairs;
    for (int64_t at = index * kGroup, end = std::min(size, at + kGroup); at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      rows_at(held, table, at, n, place);
      table.add_pairs({place.rows(), desks.weights(), count, n, apart, wanted, to});
    }
  };
  parallel(groups, std::max(size * count * 4, kWorthSharing), group);
  for (size_t pair = 0; pair < pairs; ++pair)
    totals[pair] = total_of_groups(static_cast<size_t>(groups), [&](size_t g) { return sums[g * pairs + pair]; });
  return totals;
}

}  // namespace fastagg::cpu
