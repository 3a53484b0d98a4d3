#include "../math/fixed.h"

#include <algorithm>
#include <cmath>

#include "../math/reduce.h"
#include "blocks.h"
#include "cpu.h"

namespace fastagg::cpu {
namespace {

// Blocks of a sum of `size` numbers, on several threads.
template <typename Act>
void for_each_block(int64_t size, int64_t bytes, Act act) {
  for_each_part(size, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlock) act(at, std::min(kBlock, end - at));
  });
}

// The block's numbers.
void read_block(const float* acc, const Upper& upper, int64_t at, int64_t n, int64_t* out) {
  const int32_t* const high = upper.at(at);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t low = static_cast<int32_t>(bits_of(acc[at + i]));
    out[i] = high == nullptr ? low : static_cast<int64_t>(high[i]) * (int64_t{1} << kUpperBits) + low;
  }
}

}  // namespace

void add_fixed(const int64_t* terms, int64_t sign, float* acc, bool fresh, const Upper& upper, int64_t size) {
  for_each_block(size, 24, [&](int64_t at, int64_t n) {
    int64_t sum[kBlock] = {};
    if (!fresh) read_block(acc, upper, at, n, sum);
    for (int64_t i = 0; i < n; ++i) {
      sum[i] += sign * terms[at + i];
      const int64_t high = (sum[i] + (1 << (kUpperBits - 1))) >> kUpperBits;
      upper.values[at + i] = static_cast<int32_t>(high);
      acc[at + i] =
          float_from_bits(static_cast<uint32_t>(static_cast<int32_t>(sum[i] - high * (int64_t{1} << kUpperBits))));
    }
    upper.marks[at / kBlock] = kHasUpper;
  });
}

void read_fixed(const float* acc, const Upper& upper, int64_t size, int64_t* out) {
  for_each_block(size, 16, [&](int64_t at, int64_t n) { read_block(acc, upper, at, n, out + at); });
}

void settle_fixed(const float* acc, const Upper& upper, const int64_t* more, int64_t sign, float* out, int64_t size) {
  for_each_block(size, 20, [&](int64_t at, int64_t n) {
    int64_t sum[kBlock] = {};
    if (acc != nullptr) read_block(acc, upper, at, n, sum);
    for (int64_t i = 0; i < n; ++i) {
      if (more != nullptr) sum[i] += sign * more[at + i];
      out[at + i] = static_cast<float>(static_cast<double>(sum[i]));
    }
  });
}

FixedNorm norm_of_fixed(const int64_t* terms, int64_t size) {
  std::vector<FixedNorm> groups(static_cast<size_t>((size + kGroup - 1) / kGroup));
  auto of_group = [&](int64_t group) {
    FixedNorm& found = groups[static_cast<size_t>(group)];
    double lanes[kQuads] = {};
    uint64_t seen = 0;
    for (int64_t i = group * kGroup, end = std::min(size, i + kGroup); i < end; ++i) {
      const auto bits = static_cast<uint64_t>(terms[i]), sign = terms[i] < 0 ? ~uint64_t{0} : 0;
      seen = std::max(seen, (bits ^ sign) - sign);
      const auto value = static_cast<double>(terms[i]);
      lanes[i % kQuads] += value * value;
    }
    for (int64_t half = kQuads / 2; half > 0; half /= 2)
      for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    found = {lanes[0], seen};
  };
  parallel(static_cast<int64_t>(groups.size()), size * 8, of_group);
  FixedNorm all{total_of_groups(groups.size(), [&](size_t g) { return groups[g].squares; }), 0};
  for (const FixedNorm& one : groups) all.largest = std::max(all.largest, one.largest);
  return all;
}

}  // namespace fastagg::cpu
