#include "cached_step.h"

#include "blocks.h"

namespace fastagg::cpu {
namespace {

constexpr int64_t kBitsOf[kRowFormats] = {32, 16, 8, 4};  // per element

RowBlock row_block(const Rows& rows, int64_t slot, int64_t at) {
  char* row = static_cast<char*>(rows.data) + slot * rows.row_bytes;
  float* scales = rows.scales == nullptr ? nullptr : rows.scales + slot * rows.row_scales + at / kScaleBlock;
  return {row + at * kBitsOf[rows.format] / 8, scales};
}

// Rows are padded to whole scale blocks.
int64_t padded(int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock * kScaleBlock; }

alignas(64) constexpr float kZeros[kBlock] = {};

class Decoder {
 public:
  Decoder(const Kernels& table, const Rows& rows) : table_(table), rows_(rows) {}

  // The row's block, where it lies or in scratch; zeros for no slot.
  const float* block(int64_t slot, int64_t at, int64_t n, Scratch& scratch) const {
    if (slot < 0) return kZeros;
    table_.decode[rows_.format](row_block(rows_, slot, at), scratch.values, padded(n));
    return scratch.values;
  }

 private:
  const Kernels& table_;
  const Rows& rows_;
};

}  // namespace

void cached_step(const Update& update, const Rows& rows, const CachedDirection& direction, const Optimizer& optimizer) {
  const bool steps = optimizer.x != nullptr;
  const bool streams = steps && streams_out(optimizer, update.size);
  const bool plain = rows.format == kRowFloat32;
  const bool past = plain && direction.write != direction.read && update.size >= kStreamFrom;  // not read before
  const bool replaces = direction.kind == kMean && direction.read >= 0 && direction.write >= 0 &&
                        (rows.format == kRowInt8 || rows.format == kRowInt4);
  const int64_t vectors = vectors_of(optimizer) + 4 + static_cast<int64_t>(direction.terms.size());
  for_each_block(update, vectors, [&](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
    const Decoder decoder(table, rows);
    Scratch given, old, fresh, d;
    const float* g = reader.block(at, n);
    const bool partial = n % kScaleBlock != 0;
    if (direction.gain != 1.0f || partial) {
      if (partial) std::memset(given.values, 0, sizeof given.values);
      table.scale(g, direction.gain, given.values, n);
      g = given.values;
    }
    float* high = direction.sum.high == nullptr ? nullptr : direction.sum.high + at;
    int8_t* low = direction.sum.low == nullptr ? nullptr : direction.sum.low + at;
    alignas(64) uint32_t words[4 * kCalls];
    if (!plain && direction.write >= 0) table.random_words(direction.random, at / kBlock, words, reader.next(at + n));
    // What the next stages have memory fetch while they compute: the next block of the model.
    const float* ask = steps ? optimizer.x + at + kBlock : g;
    // The sum's last change gives the direction too.
    const auto add_terms = [&](size_t first, float* mean) {
      for (size_t i = first; i < direction.terms.size(); ++i)
        table.exchange(high, low, decoder.block(direction.terms[i].slot, at, n, fresh), direction.terms[i].weight,
                       kZeros, 0.0f, i + 1 == direction.terms.size() ? mean : nullptr, direction.sum_scale, n);
    };
    if (replaces && !partial) {
      const bool termed = !direction.terms.empty() && direction.terms[0].slot != direction.write;
      const Term term = termed ? direction.terms[0] : Term{};
      table.replace[rows.format]({g, words, row_block(rows, direction.read, at), row_block(rows, direction.write, at),
                                  termed ? row_block(rows, term.slot, at) : RowBlock{}, direction.entering,
                                  direction.leaving, term.weight, high, low, d.values, direction.sum_scale, n, ask});
      add_terms(termed ? 1 : 0, d.values);
      if (steps) optimize_block(table, optimizer, d.values, at, n, streams);
      return;
    }
    // An fp32 row is read where it lies and written once it has been used; others are decoded before their slot may be
    // overwritten, and what enters the sum is what was stored.
    const float* leaving = plain && direction.read >= 0
                               ? static_cast<const float*>(row_block(rows, direction.read, at).data)
                               : decoder.block(direction.read, at, n, old);
    const auto store = [&] {
      if (direction.write < 0) return;
      if (past)
        table.stream(g, static_cast<float*>(row_block(rows, direction.write, at).data), padded(n));
      else
        table.encode[rows.format](g, words, row_block(rows, direction.write, at), padded(n), ask);
    };
    if (!plain) store();
    if (direction.kind == kMean) {
      const float* entering = direction.write >= 0 && !plain ? decoder.block(direction.write, at, n, fresh) : g;
      table.exchange(high, low, entering, direction.entering, leaving, direction.leaving, d.values, direction.sum_scale,
                     n);
      if (plain) store();
      add_terms(0, d.values);
    } else {
      table.combine(leaving, -direction.weight, g, direction.weight, d.values, n);
      if (plain) store();
      float* out = steps ? d.values : direction.acc_out + at;
      if (direction.acc != nullptr)
        table.accumulate(direction.acc + at, d.values, 1.0f, out, n);
      else if (!steps)
        std::memcpy(out, d.values, static_cast<size_t>(n) * sizeof(float));
      if (steps) {
        table.combine(d.values, direction.acc_scale, high, direction.sum_scale, d.values, n);
        add_terms(0, nullptr);
      }
    }
    if (steps) optimize_block(table, optimizer, d.values, at, n, streams);
  });
}

void recompute_sum(int64_t size, const Rows& rows, const float* weights, int64_t slots, const RunningSum& sum,
                   int64_t first, int64_t last) {
  const Kernels& table = kernels();
  auto block = [&](int64_t index) {
    const int64_t at = (first + index) * kBlock;
    const int64_t n = std::min(kBlock, size - at);
    alignas(64) double total[kBlock] = {};
    Scratch row;
    for (int64_t slot = 0; slot < slots; ++slot)
      if (weights[slot] != 0.0f)
        table.add_exactly(total, Decoder(table, rows).block(slot, at, n, row), weights[slot], n);
    table.settle(total, sum.high + at, sum.low + at, n);
  };
  if (last > first) parallel(last - first, bytes_of((last - first) * kBlock, slots), block);
}

void read_row(int64_t size, const Rows& rows, int64_t slot, float* out) {
  const Kernels& table = kernels();
  for (int64_t at = 0; at < size; at += kBlock) {
    Scratch row;
    const int64_t n = std::min(kBlock, size - at);
    std::memcpy(out + at, Decoder(table, rows).block(slot, at, n, row), static_cast<size_t>(n) * sizeof(float));
  }
}

}  // namespace fastagg::cpu
