// Encodes and decodes updates, and models that the server sends (math/wire.h).
#include <mutex>
#include <vector>

#include "blocks.h"
#include "cpu.h"

namespace fastagg::cpu {
namespace {

// Calls visit(values, at, n) for all blocks of an update, on several threads. `values` are padded with zeros to a whole
// block. Returns whether all elements are finite.
template <typename Visit>
bool for_each_block(const Update& update, int64_t bytes, Visit visit) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  const Kernels& table = kernels();
  std::atomic<bool> finite{true};
  for_each_part(update.size, bytes, [&](int64_t begin, int64_t end) {
    BlockReader reader(update, table, begin);
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = std::min(kBlock, end - at);
      Scratch last;
      const float* const values = last.padded(reader.block(at, n), n);
      if (table.largest(values, n) >= kInfinity) finite.store(false, std::memory_order_relaxed);
      visit(values, at, n);
    }
  });
  return finite;
}

// Encodes every element as a code of `bits` bits. `random`: whether the codec uses random bits to round.
bool encode_codes(const Update& update, Encoder encoder, int bits, bool random, const Wire& into,
                  const RandomKey& key) {
  auto* const codes = const_cast<uint8_t*>(into.codes);
  auto* const scales = const_cast<float*>(into.scales);
  return for_each_block(update, 4 + bits / 8, [&](const float* values, int64_t at, int64_t n) {
    alignas(64) uint32_t words[4 * kCalls];
    if (random) kernels().random_words(key, at / kBlock, words, nullptr);
    encoder(values, n, words, codes + at * bits / 8, shifted(scales, at / kScaleBlock));
  });
}

template <typename Codec>
bool encode(DenseFormat<Codec>, const Update& update, const Wire& into, const RandomKey& key) {
  return encode_codes(update, kernels().encode_wire[into.format], Codec::kBits, Codec::kRandom, into, key);
}

bool encode(TensorFormat, const Update& update, const Wire& into, const RandomKey&) {
  const Kernels& table = kernels();
  auto* const codes = reinterpret_cast<int8_t*>(const_cast<uint8_t*>(into.codes));
  auto* const scales = const_cast<float*>(into.scales);
  // Calls visit(array, first, n) for each array's run in elements at..at+n-1. `first` counts from `at`.
  const auto for_each_array = [&](int64_t at, int64_t n, auto visit) {
    int64_t array = std::upper_bound(into.ends, into.ends + into.count, at) - into.ends;
    for (int64_t first = 0; first < n; ++array) {
      const int64_t end = std::min(n, into.ends[array] - at);
      visit(array, first, end - first);
      first = end;
    }
  };
  std::vector<std::atomic<uint32_t>> largest(static_cast<size_t>(into.count));
  const bool finite = for_each_block(update, 4, [&](const float* values, int64_t at, int64_t n) {
    for_each_array(at, n, [&](int64_t array, int64_t first, int64_t count) {
      raise(largest[static_cast<size_t>(array)], table.largest(values + first, count));
    });
  });
  for (int64_t k = 0; k < into.count; ++k)
    scales[k] = scale_of(float_from_bits(largest[static_cast<size_t>(k)].load()), static_cast<float>(Int8::kLevels));
  for_each_block(update, 5, [&](const float* values, int64_t at, int64_t n) {
    for_each_array(at, n, [&](int64_t array, int64_t first, int64_t count) {
      table.encode_nearest(values + first, count, 1.0f / scales[array], codes + at + first);
    });
  });
  return finite;
}

// Chooses the `count` elements of the largest magnitudes. Of equal magnitudes, the first elements are chosen. Writes
// their places, in rising order, and their values. Magnitudes are compared by their bits. The elements are first
// counted by the upper 16 bits of their magnitudes. These counts give the upper 16 bits of the smallest chosen
// magnitude. The elements with these upper bits are then counted by their lower 16 bits.
void choose(const Update& update, int64_t count, int32_t* indices, float* values) {
  constexpr int64_t kUpper = int64_t{1} << 15, kLower = int64_t{1} << 16;
  const int64_t size = update.size, blocks = (size + kBlock - 1) / kBlock;
  const int64_t shares = std::min<int64_t>(threads(), blocks), each = (blocks + shares - 1) / shares * kBlock;
  const auto bits = [](float value) { return bits_of(value) & 0x7fffffffu; };
  const auto for_each = [&](auto act) {
    auto run_share = [&](int64_t share) {
      BlockReader reader(update, kernels(), std::min(share * each, size - 1));
      for (int64_t at = share * each, end = std::min(size, at + each); at < end; at += kBlock) {
        const int64_t n = std::min(kBlock, end - at);
        const float* const block = reader.block(at, n);
        for (int64_t i = 0; i < n; ++i) act(static_cast<size_t>(share), at + i, block[i]);
      }
    };
    parallel(shares, size * 4, run_share);
  };
  using Counts = std::vector<std::vector<int64_t>>;
  // Returns the bin of the smallest of the `wanted` largest elements. Subtracts the elements in higher bins from
  // `wanted`.
  const auto find = [](const Counts& counts, int64_t* wanted) {
    auto bin = static_cast<int64_t>(counts.front().size());
    for (int64_t in = 0; bin-- > 0; *wanted -= in) {
      in = 0;
      for (const auto& bins : counts) in += bins[static_cast<size_t>(bin)];
      if (in >= *wanted) break;
    }
    return static_cast<uint32_t>(bin);
  };
  Counts upper(static_cast<size_t>(shares), std::vector<int64_t>(kUpper)), lower = upper;
  for_each([&](size_t share, int64_t, float value) { ++upper[share][bits(value) >> 16]; });
  int64_t equal = count;  // after both calls of `find`: how many elements of the magnitude `least` are chosen
  const uint32_t high = find(upper, &equal);
  for (auto& bins : lower) bins.assign(kLower, 0);
  for_each([&](size_t share, int64_t, float value) {
    if (const uint32_t magnitude = bits(value); magnitude >> 16 == high) ++lower[share][magnitude & 0xffffu];
  });
  const uint32_t low = find(lower, &equal), least = high << 16 | low;
  // `next`: where a share writes its chosen elements. `equals`: how many of these have the smallest chosen magnitude.
  std::vector<int64_t> next(static_cast<size_t>(shares)), equals = next;
  int64_t begin = 0;
  for (size_t share = 0; share < next.size(); ++share) {
    next[share] = begin;
    equals[share] = std::min(equal, lower[share][low]);
    equal -= equals[share];
    for (size_t bin = high + 1; bin < kUpper; ++bin) begin += upper[share][bin];
    for (size_t bin = low + 1; bin < kLower; ++bin) begin += lower[share][bin];
    begin += equals[share];
  }
  for_each([&](size_t share, int64_t at, float value) {
    const uint32_t magnitude = bits(value);
    if (magnitude < least || (magnitude == least && equals[share]-- <= 0)) return;
    const int64_t place = next[share]++;
    indices[place] = static_cast<int32_t>(at), values[place] = value;
  });
}

bool encode(TopKFormat, const Update& update, const Wire& into, const RandomKey& key) {
  std::vector<float> chosen(static_cast<size_t>(into.count));
  choose(update, into.count, const_cast<int32_t*>(into.indices), chosen.data());
  Update values;
  values.add(chosen.data(), into.count, kFloat32);
  bool finite = false;
  visit_at(into.values, ValueCodecs{}, [&](auto kind) {
    using Codec = decltype(kind);
    finite = encode_codes(values, kernels().encode_values[into.values], Codec::kBits, Codec::kRandom, into, key);
  });
  return finite;
}

}  // namespace

bool encode(const Update& update, const Wire& into, const RandomKey& key) {
  bool finite = false;
  visit_at(into.format, WireFormats{}, [&](auto format) { finite = encode(format, update, into, key); });
  return finite;
}

void decode(const Wire& wire, int64_t at, float* out, int64_t n) { decode(kernels(), wire, at, out, n); }

}  // namespace fastagg::cpu
