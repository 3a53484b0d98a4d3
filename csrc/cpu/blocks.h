// What every pass over blocks shares: the scratch, the walk over an arriving update, the parallel loop.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "pool.h"
#include "step.h"

namespace fastagg::cpu {

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

  // Where the block at `position` lies, if it is in the current piece; only for asking ahead.
  const float* next(int64_t position) const {
    return static_cast<const float*>(piece_->data) + (position - piece_->begin);
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
inline void fence() {
#if defined(FASTAGG_X86)
  __builtin_ia32_sfence();
#endif
}

// An output that is not an input as well would be read into the cache only to be overwritten. From this size on,
// where it would be evicted again before anybody reads it, it goes straight to memory.
constexpr int64_t kStreamFrom = int64_t{1} << 20;

// Bytes of so many fp32 vectors.
inline int64_t bytes_of(int64_t size, int64_t vectors) { return size * vectors * static_cast<int64_t>(sizeof(float)); }

// visit(kernels, reader, position, n) for every block of the update, in parallel by groups of blocks. `vectors`: how
// many a visit touches.
template <typename Visit>
void for_each_block(const Update& update, int64_t vectors, Visit visit) {
  if (update.size == 0) return;
  const Kernels& table = kernels();
  auto group = [&](int64_t index) {
    const int64_t begin = index * kGroup;
    const int64_t end = std::min(update.size, begin + kGroup);
    Reader reader(update, table, begin);
    for (int64_t at = begin; at < end; at += kBlock) visit(table, reader, at, std::min(kBlock, end - at));
    fence();
  };
  parallel((update.size + kGroup - 1) / kGroup, bytes_of(update.size, vectors), group);
}

// The same with moments in 8 bits, which come in whole scale blocks: the vector's last one is padded with zeros.
inline void coded_block(const Kernels& table, const Optimizer& optimizer, const float* direction, const float* x,
                        float* x_out, int64_t at, int64_t n) {
  const CodedMoments& coded = optimizer.coded;
  const auto word = [at](uint8_t* base) { return base == nullptr ? nullptr : reinterpret_cast<uint32_t*>(base + at); };
  const auto unit = [at](float* base) { return base == nullptr ? nullptr : base + at / kScaleBlock; };
  table.coded[optimizer.kind]({direction, x, x_out, word(coded.m), word(coded.v), word(coded.vhat), unit(coded.units_m),
                               unit(coded.units_v), n},
                              optimizer.hyper, coded.random, at / kScaleBlock);
}

// Runs the optimizer on one block of the direction.
inline void optimize_block(const Kernels& table, const Optimizer& optimizer, const float* direction, int64_t at,
                           int64_t n, bool streams) {
  Scratch fresh;
  float* out = streams ? fresh.values : optimizer.x_out + at;
  if (optimizer.coded.units_m == nullptr) {
    const auto shifted = [at](float* base) { return base == nullptr ? nullptr : base + at; };
    table.optimizer[optimizer.kind](
        {direction, optimizer.x + at, out, shifted(optimizer.m), shifted(optimizer.v), shifted(optimizer.vhat), n},
        optimizer.hyper);
  } else if (n % kScaleBlock == 0) {
    coded_block(table, optimizer, direction, optimizer.x + at, out, at, n);
  } else {
    const int64_t whole = (n + kScaleBlock - 1) / kScaleBlock * kScaleBlock;
    const size_t bytes = static_cast<size_t>(n) * sizeof(float);
    Scratch d{}, x{};
    std::memcpy(d.values, direction, bytes);
    std::memcpy(x.values, optimizer.x + at, bytes);
    coded_block(table, optimizer, d.values, x.values, x.values, at, whole);
    std::memcpy(out, x.values, bytes);
  }
  if (streams) table.stream(fresh.values, optimizer.x_out + at, n);
}

// Vectors that an optimizer touches; moments in 8 bits count as one.
inline int64_t vectors_of(const Optimizer& optimizer) {
  if (optimizer.x == nullptr) return 0;
  int64_t found = optimizer.x_out == optimizer.x ? 1 : 2;
  for (const float* moment : {optimizer.m, optimizer.v, optimizer.vhat}) found += moment != nullptr;
  return found + (optimizer.coded.units_m != nullptr);
}

inline bool streams_out(const Optimizer& optimizer, int64_t size) {
  return optimizer.x_out != optimizer.x && size >= kStreamFrom;
}

}  // namespace fastagg::cpu
