// The stream cipher ChaCha20 (Bernstein 2008), as a generator of random words. The block function is RFC 8439's, except
// that counter and nonce have 64 bits each. Without the key, nobody can tell the output from random words. Noise for
// privacy (noise.h) needs this property. Stochastic rounding uses the faster Philox (philox.h).
#pragma once

#include "portable.h"

namespace fastagg {

struct ChaChaKey {
  uint32_t words[8];
};

// The operations that ChaCha20 needs, on single words. cpu/noise.inl has the same operations on vectors.
struct ChaChaScalar : Scalar {
  template <int Left>
  FASTAGG_FN U turned(U a) {
    return (a << Left) | (a >> (32 - Left));
  }
};

template <typename L, typename U>
FASTAGG_FN void quarter_round(U& a, U& b, U& c, U& d) {
  a += b, d = L::template turned<16>(d ^ a);
  c += d, b = L::template turned<12>(b ^ c);
  a += b, d = L::template turned<8>(d ^ a);
  c += d, b = L::template turned<7>(b ^ c);
}

// Computes a block, which is 16 output words. `place` is the last four words of ChaCha20's initial state. The counter
// is in the first two of these words, and the nonce in the others. The low halves come first.
template <typename L, typename U>
FASTAGG_FN void chacha20(const ChaChaKey& key, const U (&place)[4], U (&words)[16]) {
  constexpr uint32_t kConstants[4] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
  U start[16];
  for (int i = 0; i < 4; ++i) start[i] = U{} + kConstants[i], start[12 + i] = place[i];
  for (int i = 0; i < 8; ++i) start[4 + i] = U{} + key.words[i];
  for (int i = 0; i < 16; ++i) words[i] = start[i];
  for (int round = 0; round < 20; round += 2) {
    quarter_round<L>(words[0], words[4], words[8], words[12]);
    quarter_round<L>(words[1], words[5], words[9], words[13]);
    quarter_round<L>(words[2], words[6], words[10], words[14]);
    quarter_round<L>(words[3], words[7], words[11], words[15]);
    quarter_round<L>(words[0], words[5], words[10], words[15]);
    quarter_round<L>(words[1], words[6], words[11], words[12]);
    quarter_round<L>(words[2], words[7], words[8], words[13]);
    quarter_round<L>(words[3], words[4], words[9], words[14]);
  }
  for (int i = 0; i < 16; ++i) words[i] += start[i];
}

// Computes the block for a counter and a nonce. Under one key, a pair of counter and nonce must serve one purpose only.
inline void chacha_words(const ChaChaKey& key, uint64_t counter, uint64_t nonce, uint32_t (&words)[16]) {
  const uint32_t place[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                             static_cast<uint32_t>(nonce), static_cast<uint32_t>(nonce >> 32)};
  chacha20<ChaChaScalar>(key, place, words);
}

// Derives a new key from `key`. The new key reveals nothing about `key`.
inline ChaChaKey derived(const ChaChaKey& key, uint64_t counter, uint64_t nonce) {
  uint32_t words[16];
  chacha_words(key, counter, nonce, words);
  ChaChaKey derived_key;
  for (int i = 0; i < 8; ++i) derived_key.words[i] = words[i];
  return derived_key;
}

}  // namespace fastagg
