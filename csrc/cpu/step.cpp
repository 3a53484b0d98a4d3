#include "step.h"

#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "pool.h"

namespace fastagg::cpu {

void Update::add(const void* data, int64_t count, Dtype dtype) {
  if (count > 0) pieces.push_back({data, size, count, dtype});
  size += count;
}

namespace {

struct alignas(64) Scratch {
  float values[kBlock];
};

// Walks an update block by block, in increasing order. A block that lies in one fp32 piece is used in place;
// otherwise it is widened and put together in scratch, which stays in L1.
class Reader {
 public:
  Reader(const Update& update, const Kernels& kernels, int64_t position) : kernels_(kernels) {
    const auto after = [](int64_t value, const Piece& piece) { return value < piece.begin; };
    piece_ = std::upper_bound(update.pieces.begin(), update.pieces.end(), position, after) - 1;
  }

  const float* block(int64_t position, int64_t n) {
    while (position >= piece_->begin + piece_->size) ++piece_;
    const int64_t offset = position - piece_->begin;
    if (piece_->dtype == kFloat32 && offset + n <= piece_->size)
      return static_cast<const float*>(piece_->data) + offset;
    for (int64_t filled = 0; filled < n;) {
      if (position + filled == piece_->begin + piece_->size) ++piece_;
      const int64_t start = position + filled - piece_->begin;
      const int64_t count = std::min(n - filled, piece_->size - start);
      copy(start, count, scratch_.values + filled);
      filled += count;
    }
    return scratch_.values;
  }

 private:
  void copy(int64_t start, int64_t count, float* out) const {
    switch (piece_->dtype) {
      case kFloat32:
        std::memcpy(out, static_cast<const float*>(piece_->data) + start, static_cast<size_t>(count) * sizeof(float));
        break;
      case kFloat16: kernels_.widen_f16(static_cast<const uint16_t*>(piece_->data) + start, out, count); break;
      case kBFloat16: kernels_.widen_bf16(static_cast<const uint16_t*>(piece_->data) + start, out, count); break;
    }
  }

  const Kernels& kernels_;
  std::vector<Piece>::const_iterator piece_;
  Scratch scratch_;
};

// Streamed stores are weakly ordered: make them visible before this group counts as done.
void fence() {
#if defined(FASTAGG_X86)
  __builtin_ia32_sfence();
#endif
}

// An output that is not an input as well would be read into the cache only to be overwritten. From this size on,
// where it would be evicted again before anybody reads it, it goes straight to memory.
constexpr int64_t kStreamFrom = int64_t{1} << 20;

// visit(kernels, reader, position, n) for every block of the update, in parallel by groups of blocks.
template <typename Visit>
void for_each_block(const Update& update, Visit visit) {
  if (update.size == 0) return;
  const Kernels& table = kernels();
  auto group = [&](int64_t index) {
    const int64_t begin = index * kGroup;
    const int64_t end = std::min(update.size, begin + kGroup);
    Reader reader(update, table, begin);
    for (int64_t at = begin; at < end; at += kBlock) visit(table, reader, at, std::min(kBlock, end - at));
    fence();
  };
  parallel((update.size + kGroup - 1) / kGroup, group);
}

float* offset(float* base, int64_t at) { return base == nullptr ? nullptr : base + at; }

}  // namespace

void step(const Update& update, const Direction& direction, const Optimizer& optimizer) {
  const float gain = direction.gain * direction.weight;
  const auto apply = optimizer.kind;
  const bool streams = optimizer.x_out != optimizer.x && update.size >= kStreamFrom;
  for_each_block(update, [&](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
    Scratch scratch;
    const float* given = reader.block(at, n);
    const float* d = scratch.values;
    if (direction.kind == kSingle && gain == 1.0f) {
      d = given;
    } else if (direction.kind == kSingle) {
      table.scale(given, gain, scratch.values, n);
    } else if (direction.kind == kFlush) {
      table.flush(direction.acc + at, given, gain, direction.scale, scratch.values, n);
    } else {
      table.blend(direction.base + at, optimizer.x + at, given, direction.gain, direction.weight, scratch.values, n);
    }
    Scratch fresh;
    table.optimizer[apply]({d, optimizer.x + at, streams ? fresh.values : optimizer.x_out + at, offset(optimizer.m, at),
                            offset(optimizer.v, at), offset(optimizer.vhat, at), n},
                           optimizer.hyper);
    if (streams) table.stream(fresh.values, optimizer.x_out + at, n);
  });
}

void accumulate(const Update& update, const float* acc, float weight, float* acc_out) {
  for_each_block(update, [&](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
    const float* given = reader.block(at, n);
    if (acc != nullptr) {
      table.accumulate(acc + at, given, weight, acc_out + at, n);
    } else if (update.size < kStreamFrom) {
      table.scale(given, weight, acc_out + at, n);
    } else {
      Scratch fresh;
      table.scale(given, weight, fresh.values, n);
      table.stream(fresh.values, acc_out + at, n);
    }
  });
}

void gather(const Update& update, float* out) { accumulate(update, nullptr, 1.0f, out); }

double sum_squares(const Update& update) {
  const int64_t groups = (update.size + kGroup - 1) / kGroup;
  std::vector<double> partial(static_cast<size_t>(groups), 0.0);
  for_each_block(update, [&](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
    Scratch padded;
    const float* values = reader.block(at, n);
    if (n < kBlock) {
      std::memset(padded.values, 0, sizeof padded.values);
      std::memcpy(padded.values, values, static_cast<size_t>(n) * sizeof(float));
      values = padded.values;
    }
    // Only this thread visits this group, and it visits its blocks in order.
    partial[static_cast<size_t>(at / kGroup)] += table.sum_squares(values);
  });
  double slots[kSlots] = {};
  for (int64_t g = 0; g < groups; ++g) slots[g % kSlots] += partial[static_cast<size_t>(g)];
  for (int64_t half = kSlots / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) slots[i] += slots[i + half];
  return slots[0];
}

}  // namespace fastagg::cpu
