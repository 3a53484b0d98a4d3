// The order of samples in an epoch: NumPy's permutations, sooner.
#pragma once

#include <stdint.h>

#include <utility>

namespace fastagg::train {

__extension__ typedef unsigned __int128 Wide;
constexpr Wide wide(uint64_t high, uint64_t low) { return (Wide{high} << 64) | low; }
constexpr Wide kMultiplier = wide(0x2360ED051FC65DA4u, 0x4385DF649FCCF645u);

// numpy.random.PCG64 from the four words of its seed (O'Neill 2014, XSL-RR).
class Pcg64 {
 public:
  explicit Pcg64(const uint64_t words[4])
      : step_((wide(words[2], words[3]) << 1) | 1), state_((step_ + wide(words[0], words[1])) * kMultiplier + step_) {}

  // 0..most, as NumPy's shuffles draw it.
  uint32_t upto(uint32_t most) {
    uint32_t mask = most;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    for (;;) {
      const uint32_t found = half() & mask;
      if (found <= most) return found;
    }
  }

 private:
  uint32_t half() {
    kept_ = !kept_;
    if (!kept_) return static_cast<uint32_t>(pair_ >> 32);
    state_ = state_ * kMultiplier + step_;
    const uint64_t word = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const int turn = static_cast<int>(state_ >> 122);
    pair_ = (word >> turn) | (word << (-turn & 63));
    return static_cast<uint32_t>(pair_);
  }

  Wide step_, state_;
  uint64_t pair_ = 0;
  bool kept_ = false;
};

// Writes `epochs` permutations of 0..size-1, as Generator.permutation draws them one after the other.
inline void permute(const uint64_t words[4], int64_t size, int64_t epochs, int64_t* out) {
  Pcg64 draws(words);
  for (; epochs > 0; --epochs, out += size) {
    for (int64_t i = 0; i < size; ++i) out[i] = i;
    for (int64_t i = size - 1; i > 0; --i) std::swap(out[i], out[draws.upto(static_cast<uint32_t>(i))]);
  }
}

}  // namespace fastagg::train
