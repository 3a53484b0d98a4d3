// Helpers for passes over an update. They read the update in runs or blocks, and divide the work between threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "kernels.h"
#include "pool.h"
#include "tuning.h"

namespace fastagg::cpu {

struct alignas(64) Scratch {
  float values[kBlock];

  // Returns `from` itself if its n values are a whole block, otherwise a copy in `values`, padded with zeros.
  const float* padded(const float* from, int64_t n) {
    if (n == kBlock) return from;
    std::memcpy(values, from, static_cast<size_t>(n) * sizeof(float));
    std::memset(values + n, 0, static_cast<size_t>(kBlock - n) * sizeof(float));
    return values;
  }
};

inline std::vector<Piece>::const_iterator piece_at(const Update& update, int64_t position) {
  const auto after = [](int64_t value, const Piece& piece) { return value < piece.begin; };
  return std::upper_bound(update.pieces.begin(), update.pieces.end(), position, after) - 1;
}

inline void decode(const Kernels& table, const Wire& wire, int64_t at, float* out, int64_t n) {
  table.decode_wire[wire.format](wire, at, out, n, tuning().prefetch);
}

inline void widen(const Kernels& table, const Piece& piece, int64_t offset, float* out, int64_t n) {
  if (piece.dtype == kEncoded) return decode(table, *static_cast<const Wire*>(piece.data), offset, out, n);
  const uint16_t* halves = static_cast<const uint16_t*>(piece.data) + offset;
  if (piece.dtype == kFloat16)
    table.widen_f16(halves, out, n);
  else if (piece.dtype == kBFloat16)
    table.widen_bf16(halves, out, n);
  else
    std::memcpy(out, static_cast<const float*>(piece.data) + offset, static_cast<size_t>(n) * sizeof(float));
}

inline uint32_t limit_bits(const Update& update) { return update.is_limited() ? bits_of(update.limit) : kNoLimit; }

// Converts n elements of a piece, from the piece's element `offset` on, to fp32, and writes them to `out`. If the
// update has a limit, limits their magnitudes.
inline void read_piece(const Kernels& table, const Update& update, const Piece& piece, int64_t offset, float* out,
                       int64_t n) {
  if (!update.is_limited()) return widen(table, piece, offset, out, n);
  const bool plain = piece.dtype == kFloat32;
  if (!plain) widen(table, piece, offset, out, n);
  table.limit(plain ? static_cast<const float*>(piece.data) + offset : out, limit_bits(update), out, n,
              tuning().prefetch);
}

// Returns whether kernels can read the piece's elements in place: the elements are fp32, and the update has no limit,
// or the kernels limit what they read (`limits`).
inline bool is_plain(const Update& update, const Piece& piece, bool limits = false) {
  return piece.dtype == kFloat32 && (limits || !update.is_limited());
}

// Calls visit(values, at, n) for consecutive runs that together cover elements begin..end-1. A run of a plain piece is
// read in place, and is as long as possible. Other pieces are converted by read_piece in `scratch`, one block at a
// time, so that `scratch` stays in the L1 cache. `limits`: whether `visit` limits the values itself.
template <typename Visit>
void for_each_run(const Update& update, const Kernels& table, int64_t begin, int64_t end, Visit visit,
                  bool limits = false) {
  Scratch scratch;
  auto piece = piece_at(update, begin);
  for (int64_t at = begin; at < end;) {
    while (at >= piece->begin + piece->size) ++piece;
    const int64_t offset = at - piece->begin;
    const int64_t left = std::min(end - at, piece->size - offset);
    const bool plain = is_plain(update, *piece, limits);
    const int64_t n = plain ? left : std::min(left, kBlock);
    if (!plain) read_piece(table, update, *piece, offset, scratch.values, n);
    visit(plain ? static_cast<const float*>(piece->data) + offset : scratch.values, at, n);
    at += n;
  }
}

// Reads blocks of an update in increasing order. A block in one plain piece is read in place. Other blocks are copied.
// `limits`: whether the caller limits the values itself.
class BlockReader {
 public:
  BlockReader(const Update& update, const Kernels& table, int64_t position, bool limits = false)
      : update_(update), table_(table), piece_(piece_at(update, position)), limits_(limits) {}

  // Returns how many elements from `position` on can be read in place.
  int64_t plain(int64_t position) {
    while (position >= piece_->begin + piece_->size) ++piece_;
    return is_plain(update_, *piece_) ? piece_->begin + piece_->size - position : 0;
  }

  const float* block(int64_t position, int64_t n) {
    while (position >= piece_->begin + piece_->size) ++piece_;
    const int64_t offset = position - piece_->begin;
    if (is_plain(update_, *piece_, limits_) && offset + n <= piece_->size)
      return static_cast<const float*>(piece_->data) + offset;
    for (int64_t filled = 0; filled < n;) {
      if (position + filled == piece_->begin + piece_->size) ++piece_;
      const int64_t start = position + filled - piece_->begin;
      const int64_t count = std::min(n - filled, piece_->size - start);
      read_piece(table_, update_, *piece_, start, scratch_.values + filled, count);
      filled += count;
    }
    return scratch_.values;
  }

 private:
  const Update& update_;
  const Kernels& table_;
  std::vector<Piece>::const_iterator piece_;
  const bool limits_;
  Scratch scratch_;
};

// Reads each element of an update once. Calls visit(values, at, n) for runs of fp32 copies in the L1 cache. The calls
// come in any order and from several threads. Returns the sum of squares of the values (norms.cpp).
using Visit = std::function<void(const float* values, int64_t at, int64_t n)>;
double read_once(const Update& update, const Visit& visit);

// Returns the kernels for a loop over fp32 vectors that touches `bytes` bytes in total.
inline const Kernels& loops_for(int64_t bytes) {
  return bytes <= tuning().wide_below ? kernels() : streaming_kernels();
}

inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 64 == 0; }

template <typename T>
T* shifted(T* pointer, int64_t by) {
  return pointer == nullptr ? nullptr : pointer + by;
}

template <typename T>
void raise(std::atomic<T>& largest, T value) {
  T held = largest.load(std::memory_order_relaxed);
  while (held < value && !largest.compare_exchange_weak(held, value, std::memory_order_relaxed)) {
  }
}

// Returns how many elements a thread takes at a time: a multiple of kBlock, from 4*kBlock to tuning().group, and within
// these limits an eighth of a thread's share. If the work is not shared between threads, the result is `size`.
inline int64_t turn_of(int64_t size, bool shared) {
  if (!shared) return size;
  return std::clamp((size / (8 * threads()) + kBlock - 1) / kBlock * kBlock, 4 * kBlock, tuning().group);
}

// Calls part(begin, end) in parallel for parts that cover 0..size-1. `bytes` is how many bytes are touched per element.
template <typename Part>
void for_each_part(int64_t size, int64_t bytes, Part part) {
  if (size == 0) return;
  const int64_t turn = turn_of(size, size * bytes >= kWorthSharing && threads() > 1);
  auto run_part = [&](int64_t index) { part(index * turn, std::min(size, (index + 1) * turn)); };
  parallel((size + turn - 1) / turn, size * bytes, run_part);
}

}  // namespace fastagg::cpu
