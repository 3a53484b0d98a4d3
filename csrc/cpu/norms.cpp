#include "norms.h"

#include <array>

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

// sums(table, reader, position, n) gives `Sums` numbers for a block; their totals over all blocks, in reduce.h's shape.
//
// A pass that only reads waits for memory, and the hardware fetches ahead within a page: so a group is read at several
// places in turn, each with a reader of its own. Its blocks are added in their order all the same.
template <int Sums, typename Of>
std::array<double, Sums> totals(const Update& update, Of sums) {
  constexpr int64_t kPlaces = 4, kEach = kGroupBlocks / kPlaces;
  std::array<std::vector<double>, Sums> partial;
  for (auto& one : partial) one.assign(static_cast<size_t>(groups_of(update.size)), 0.0);
  const Kernels& table = kernels();
  auto group = [&](int64_t index) {
    const int64_t begin = index * kGroup, end = std::min(update.size, begin + kGroup);
    std::array<double, Sums> found[kGroupBlocks];
    std::vector<Reader> readers;
    readers.reserve(kPlaces);
    for (int64_t place = 0; place < kPlaces && begin + place * kEach * kBlock < end; ++place)
      readers.emplace_back(update, table, begin + place * kEach * kBlock);
    for (int64_t turn = 0; turn < kEach; ++turn) {
      for (size_t place = 0; place < readers.size(); ++place) {
        const int64_t block = static_cast<int64_t>(place) * kEach + turn, at = begin + block * kBlock;
        if (at < end) found[block] = sums(table, readers[place], at, std::min(kBlock, end - at));
      }
    }
    for (int64_t block = 0; begin + block * kBlock < end; ++block)
      for (size_t k = 0; k < Sums; ++k) partial[k][static_cast<size_t>(index)] += found[block][k];
  };
  parallel(groups_of(update.size), bytes_of(update.size, Sums), group);
  std::array<double, Sums> all;
  for (size_t k = 0; k < Sums; ++k) all[k] = total_of(partial[k]);
  return all;
}

}  // namespace

double sum_squares(const Update& update) {
  return totals<1>(update, [](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
    Scratch scratch;
    const float* values = whole(reader.block(at, n), n, scratch);
    return std::array<double, 1>{table.square(values)};
  })[0];
}

Distances distances(const Update& update, const float* x, const float* base, bool wants_inner) {
  const auto [moved, norm, inner] = totals<3>(update, [&](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
    Scratch of_x, of_base, of_update;
    std::array<double, 3> sums{};
    table.apart(whole(x + at, n, of_x), whole(base + at, n, of_base), whole(reader.block(at, n), n, of_update),
                wants_inner, sums.data());
    return sums;
  });
  return {moved, norm, inner};
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
  if (parts > 0) parallel(parts, bytes_of(update.size, 2), part);
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
