// Reads an arriving update on the device. An update's pieces have their own types, and are read in place. Most kernels
// are compiled for two readers. FlatReader reads one aligned fp32 vector, as most updates are. Cursor reads any update.
#pragma once

#include <cstdint>

#include "../math/half.h"
#include "vector.cuh"

namespace fastagg::cuda {

// The argument of kernels for an update that is one aligned fp32 vector.
struct WholeVector {
  const float* data;
  int64_t size;
};

struct Source {
  int64_t size;
  int count;
  const void* data[kMostPieces];
  int64_t end[kMostPieces];  // the piece's end in the flat vector, times 4, plus its dtype

  __device__ __forceinline__ int64_t end_of(int piece) const { return end[piece] >> 2; }
  __device__ __forceinline__ int64_t begin_of(int piece) const { return piece == 0 ? 0 : end_of(piece - 1); }
  __device__ __forceinline__ int dtype_of(int piece) const { return static_cast<int>(end[piece] & 3); }
};

// Returns a piece of fp32, fp16 or bf16 numbers. Those of an encoded update are the decoded numbers in its DeviceWire.
inline Piece as_numbers(Piece piece) {
  if (piece.dtype != kDeviceEncoded) return piece;
  return {static_cast<const DeviceWire*>(piece.data)->numbers, piece.begin, piece.size, kFloat32};
}

inline Source source_of(const Update& update) {
  Source source{};
  source.size = update.size;
  for (const Piece& each : update.pieces) {
    const Piece piece = as_numbers(each);
    source.data[source.count] = piece.data;
    source.end[source.count++] = (piece.begin + piece.size) * 4 + piece.dtype;
  }
  return source;
}

__device__ __forceinline__ float widen(int dtype, uint32_t half) {
  const uint16_t bits = static_cast<uint16_t>(half);
  return dtype == kFloat16 ? widen_f16(bits) : widen_bf16(bits);
}

// Reads an update that is one aligned fp32 vector.
class FlatReader {
 public:
  using SourceData = WholeVector;
  __device__ __forceinline__ FlatReader(const SourceData& source, int64_t) : data_(source.data) {}

  // Returns elements at..at+3. Without `Whole`, only the first `left` elements exist, and the others are 0.
  template <bool Whole>
  __device__ __forceinline__ Quad read(int64_t at, int64_t left) {
    return load<Whole>(data_ + at, left);
  }
  __device__ __forceinline__ float element(int64_t at) { return data_[at]; }

 private:
  const float* data_;
};

// Reads any update, at increasing positions from `position` on.
class Cursor {
 public:
  using SourceData = Source;
  __device__ __forceinline__ Cursor(const Source& source, int64_t position) : source_(source), piece_(0) {
    for (int low = 0, high = source.count - 1; low < high;) {
      const int middle = (low + high) / 2;
      if (position < source.end_of(middle))
        high = middle;
      else
        low = middle + 1;
      piece_ = low;
    }
  }

  template <bool Whole>
  __device__ __forceinline__ Quad read(int64_t at, int64_t left) {
    if (!Whole && left <= 0) return {};
    while (at >= source_.end_of(piece_)) ++piece_;
    const int64_t offset = at - source_.begin_of(piece_);
    const int dtype = source_.dtype_of(piece_);
    if (at + kFour <= source_.end_of(piece_)) {
      if (dtype == kFloat32) {
        const float* in = static_cast<const float*>(source_.data[piece_]) + offset;
        if (reinterpret_cast<uintptr_t>(in) % 16 == 0) return load<true>(in, kFour);
      } else {
        const uint16_t* in = static_cast<const uint16_t*>(source_.data[piece_]) + offset;
        if (reinterpret_cast<uintptr_t>(in) % 8 == 0) {
          const uint2 halves = *reinterpret_cast<const uint2*>(in);
          return {{widen(dtype, halves.x), widen(dtype, halves.x >> 16), widen(dtype, halves.y),
                   widen(dtype, halves.y >> 16)}};
        }
      }
    }
    Quad out;
#pragma unroll
    for (int e = 0; e < kFour; ++e) out.v[e] = Whole || e < left ? element(at + e) : 0.0f;
    return out;
  }

  __device__ __forceinline__ float element(int64_t at) {
    while (at >= source_.end_of(piece_)) ++piece_;
    const int64_t offset = at - source_.begin_of(piece_);
    const int dtype = source_.dtype_of(piece_);
    if (dtype == kFloat32) return static_cast<const float*>(source_.data[piece_])[offset];
    return widen(dtype, static_cast<const uint16_t*>(source_.data[piece_])[offset]);
  }

 private:
  const Source& source_;
  int piece_;
};

// An empty struct that names a reader, as an argument for read_with's `launch`.
template <typename One>
struct SourceKind {
  using Reader = One;
};

// Calls launch(SourceKind<Reader>{}, source) with the reader that suits the update, and with the reader's source.
template <typename Launch>
void read_with(const Update& update, Launch launch) {
  const Piece first = update.pieces.size() == 1 ? as_numbers(update.pieces[0]) : Piece{};
  if (first.data != nullptr && first.dtype == kFloat32 && all_aligned(first.data))
    launch(SourceKind<FlatReader>{}, WholeVector{static_cast<const float*>(first.data), update.size});
  else
    launch(SourceKind<Cursor>{}, source_of(update));
}

}  // namespace fastagg::cuda
