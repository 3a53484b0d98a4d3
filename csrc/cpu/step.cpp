#include "step.h"

#include "blocks.h"

namespace fastagg::cpu {

void Update::add(const void* data, int64_t count, Dtype dtype) {
  if (count > 0) pieces.push_back({data, size, count, dtype});
  size += count;
}

void step(const Update& update, const Direction& direction, const Optimizer& optimizer) {
  const float gain = direction.gain * direction.weight;
  const bool streams = streams_out(optimizer, update.size);
  const int64_t vectors = vectors_of(optimizer) + (direction.kind == kSingle ? 1 : 2);
  for_each_block(update, vectors, [&](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
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
    optimize_block(table, optimizer, d, at, n, streams);
  });
}

void accumulate(const Update& update, const float* acc, float weight, float* acc_out) {
  for_each_block(update, acc == nullptr || acc == acc_out ? 2 : 3,
                 [&](const Kernels& table, Reader& reader, int64_t at, int64_t n) {
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

void copy(const Update& update, int64_t first, int64_t count, int64_t item, void* out) {
  constexpr int64_t kPart = int64_t{1} << 18;  // elements a thread takes at a time
  auto part = [&](int64_t index) {
    const int64_t begin = first + index * kPart, end = std::min(first + count, begin + kPart);
    for (const Piece& piece : update.pieces) {
      const int64_t from = std::max(begin, piece.begin), to = std::min(end, piece.begin + piece.size);
      if (from < to)
        std::memcpy(static_cast<char*>(out) + (from - first) * item,
                    static_cast<const char*>(piece.data) + (from - piece.begin) * item,
                    static_cast<size_t>((to - from) * item));
    }
  };
  parallel((count + kPart - 1) / kPart, 2 * count * item, part);
}

void gather(const Update& update, float* out) { accumulate(update, nullptr, 1.0f, out); }

}  // namespace fastagg::cpu
