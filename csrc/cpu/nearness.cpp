// Detects an update that is nearly the model itself: probably a trained model was sent instead of a difference.
#include <algorithm>
#include <cstring>

#include "../math/half.h"
#include "cpu.h"

namespace fastagg::cpu {
namespace {

constexpr int64_t kFew = 16, kMany = 1024;

float element(const Piece& piece, int64_t at) {
  if (piece.dtype == kFloat32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(piece.data) + 4 * at, sizeof value);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, static_cast<const char*>(piece.data) + 2 * at, sizeof half);
  return piece.dtype == kFloat16 ? widen_f16(half) : widen_bf16(half);
}

// Whether |u - x| < share*|u| on evenly spaced elements, at most `most` of them.
bool nearer_than(double share, const Update& update, const float* x, int64_t most) {
  const int64_t every = (update.size + most - 1) / most;
  double apart = 0.0, length = 0.0;
  int64_t at = 0;
  for (const Piece& piece : update.pieces) {
    for (; at < piece.begin + piece.size; at += every) {
      const double u = element(piece, at - piece.begin), difference = u - static_cast<double>(x[at]);
      apart += difference * difference;
      length += u * u;
    }
  }
  return apart < share * share * length;
}

}  // namespace

bool nearly(const Update& update, const float* x) {
  // A few elements come first. They are enough for an ordinary update.
  return update.size > 0 && nearer_than(0.5, update, x, kFew) && nearer_than(0.1, update, x, kMany);
}

}  // namespace fastagg::cpu
