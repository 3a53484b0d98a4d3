// Draws the random numbers and permutations that NumPy would draw from the same seed. This code is faster than NumPy,
// because creating NumPy's generator takes longer than the draws.
#pragma once

#include <stdint.h>

#include <utility>

namespace fastagg::train {

__extension__ typedef unsigned __int128 Wide;
constexpr Wide wide(uint64_t high, uint64_t low) { return (Wide{high} << 64) | low; }
constexpr Wide kMultiplier = wide(0x2360ED051FC65DA4u, 0x4385DF649FCCF645u);

// Draws like a numpy.random.Generator with PCG64 (O'Neill 2014, XSL-RR). `words`: 4 words that NumPy makes of the seed.
class Pcg64 {
 public:
  explicit Pcg64(const uint64_t words[4])
      : step_((wide(words[2], words[3]) << 1) | 1), state_((step_ + wide(words[0], words[1])) * kMultiplier + step_) {}

  uint64_t next() {
    state_ = state_ * kMultiplier + step_;
    const uint64_t word = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
    const int turn = static_cast<int>(state_ >> 122);
    return (word >> turn) | (word << (-turn & 63));
  }

  // Draws a number in [0, 1), as Generator.random does.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  // Draws a number in 0..count-1, as NumPy's Generator.integers does (Lemire 2019).
  uint32_t below(uint32_t count) {
    const uint32_t least = (0u - count) % count;
    for (;;) {
      const uint64_t product = uint64_t{half()} * count;
      if (static_cast<uint32_t>(product) >= least) return static_cast<uint32_t>(product >> 32);
    }
  }

  // Draws a number in 0..limit, as NumPy's Generator.permutation does.
  uint32_t upto(uint32_t limit) {
    uint32_t mask = limit;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    for (;;) {
      const uint32_t number = half() & mask;
      if (number <= limit) return number;
    }
  }

 private:
  uint32_t half() {
    kept_ = !kept_;
    if (kept_) pair_ = next();
    return static_cast<uint32_t>(kept_ ? pair_ : pair_ >> 32);
  }

  Wide step_, state_;
  uint64_t pair_ = 0;
  bool kept_ = false;
};

// Writes `count` permutations of 0..size-1, one after the other.
inline void permute(Pcg64 draws, int64_t size, int64_t count, int64_t* out) {
  for (; count > 0; --count, out += size) {
    for (int64_t i = 0; i < size; ++i) out[i] = i;
    for (int64_t i = size - 1; i > 0; --i) std::swap(out[i], out[draws.upto(static_cast<uint32_t>(i))]);
  }
}

}  // namespace fastagg::train
