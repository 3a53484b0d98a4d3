#include "norms.h"

#include "blocks.h"

namespace fastagg::cpu {
namespace {

int64_t groups_of(int64_t size) { return (size + kGroup - 1) / kGroup; }

// reduce.h: the total of the groups' sums, whatever thread made them.
double total_of(const std::vector<double>& partial) {
  double slots[kSlots] = {};
  for (size_t g = 0; g < partial.size(); ++g) slots[g % kSlots] += partial[g];
  for (int64_t half = kSlots / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) slots[i] += slots[i + half];
  return slots[0];
}

// A whole block, zeros after the first n: they change no sum.
const float* whole(const float* values, int64_t n, Scratch& scratch) {
  if (n == kBlock) return values;
  std::memset(scratch.values, 0, sizeof scratch.values);
  std::memcpy(scratch.values, values, static_cast<size_t>(n) * sizeof(float));
  return scratch.values;
}

}  // namespace

double sum_squares(const Update& update) {
  std::vector<double> partial(static_cast<size_t>(groups_of(update.size)), 0.0);
  for_each_block(update, [&](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
    Scratch scratch;
    const float* values = whole(reader.block(at, n), n, scratch);
    // Only this thread visits this group, and it visits its blocks in order.
    partial[static_cast<size_t>(at / kGroup)] += table.dot(values, values);
  });
  return total_of(partial);
}

Distances distances(const Update& update, const float* x, const float* base, bool wants_inner) {
  const size_t groups = static_cast<size_t>(groups_of(update.size));
  std::vector<double> moved(groups, 0.0), norm(groups, 0.0), inner(groups, 0.0);
  for_each_block(update, [&](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
    Scratch difference, scratch;
    if (n < kBlock) std::memset(difference.values, 0, sizeof difference.values);
    table.subtract(x + at, base + at, difference.values, n);
    const float* values = whole(reader.block(at, n), n, scratch);
    const size_t group = static_cast<size_t>(at / kGroup);
    moved[group] += table.dot(difference.values, difference.values);
    norm[group] += table.dot(values, values);
    if (wants_inner) inner[group] += table.dot(difference.values, values);
  });
  return {total_of(moved), total_of(norm), total_of(inner)};
}

void sketch(const Update& update, int64_t k, uint64_t seed, float* out) {
  // A fixed number of parts, each summed in order by one thread, and then added in order: the same bits on any number
  // of threads.
  constexpr int64_t kParts = 32;
  const int64_t blocks = (update.size + kBlock - 1) / kBlock;
  const int64_t parts = std::min(kParts, blocks);
  const int64_t length = k + kBlock;  // a block that begins near the end of the circle runs over; folded back below
  std::vector<float> partial(static_cast<size_t>(parts * length), 0.0f);
  const Kernels& table = kernels();
  const RandomKey key{seed, 0, 0xFFFFFFFFu};
  auto part = [&](int64_t index) {
    const int64_t first = blocks * index / parts, last = blocks * (index + 1) / parts;
    Reader reader(update, table, first * kBlock);
    float* buckets = partial.data() + index * length;
    for (int64_t block = first; block < last; ++block) {
      const int64_t at = block * kBlock, n = std::min(kBlock, update.size - at);
      uint32_t signs[kBlock / 32];
      for (uint32_t call = 0; call < 8; ++call) {
        const Philox r = random_call(key, block, call);
        const uint32_t words[4] = {r.a, r.b, r.c, r.d};
        std::memcpy(signs + 4 * call, words, sizeof words);
      }
      const uint64_t place = random_call(key, block, 8).a;
      table.sketch(reader.block(at, n), signs, buckets + ((place * static_cast<uint64_t>(k)) >> 32), n);
    }
  };
  if (parts > 0) parallel(parts, part);
  for (int64_t bucket = 0; bucket < k; ++bucket) {
    double total = 0.0;
    for (int64_t p = 0; p < parts; ++p) {
      const float* buckets = partial.data() + p * length;
      total += buckets[bucket];
      if (bucket < kBlock) total += buckets[k + bucket];
    }
    out[bucket] = static_cast<float>(total);
  }
}

}  // namespace fastagg::cpu
