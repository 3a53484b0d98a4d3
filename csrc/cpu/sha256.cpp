// Computes SHA-256 (FIPS 180-4), with the processor's SHA instructions if there are any.
#include "sha256.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

namespace fastagg::cpu {
namespace {

alignas(64) constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | uint32_t{at[3]};
}

uint32_t turned(uint32_t word, int by) { return word >> by | word << (32 - by); }

void portable(uint32_t* state, const uint8_t* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; ++i) w[i] = big(data + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    std::memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; ++i) {
      const uint32_t e = s[4], a = s[0];
      const uint32_t first =
          s[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + kRounds[i] + w[i];
      const uint32_t two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      for (int k = 7; k > 0; --k) s[k] = s[k - 1];
      s[4] += first;
      s[0] = first + two;
    }
    for (int i = 0; i < 8; ++i) state[i] += s[i];
  }
}

#if defined(__x86_64__)
#define FASTAGG_SHA __attribute__((target("sha,sse4.1")))
bool has_instruction() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1u) != 0;
}

FASTAGG_SHA void hardware(uint32_t* state, const uint8_t* data, size_t blocks) {
  const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  // The instructions expect the state's words a, b, e, f in one register, and c, d, g, h in another.
  const auto* at = reinterpret_cast<__m128i*>(state);
  const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(at), 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(at + 1), 0x1B);
  __m128i abef = _mm_alignr_epi8(badc, efgh, 8), cdgh = _mm_blend_epi16(efgh, badc, 0xF0);
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), order);
    for (int i = 0; i < 16; ++i) {
      const __m128i here = w[0];
      const __m128i k = _mm_add_epi32(here, _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds) + i));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0E));
      const __m128i next =
          _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(here, w[1]), _mm_alignr_epi8(w[3], w[2], 4)), w[3]);
      w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = next;
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  auto* to = reinterpret_cast<__m128i*>(state);
  _mm_storeu_si128(to, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(to + 1, _mm_alignr_epi8(dchg, feba, 8));
}
#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#if defined(__clang__)
#define FASTAGG_SHA __attribute__((target("sha2")))
#else
#define FASTAGG_SHA __attribute__((target("+crypto")))
#endif
#if defined(__linux__)
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_SHA2) != 0; }
#else
bool has_instruction() { return true; }  // all of Apple's 64-bit processors have the instructions
#endif

FASTAGG_SHA void hardware(uint32_t* state, const uint8_t* data, size_t blocks) {
  uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
  for (; blocks > 0; --blocks, data += 64) {
    const uint32x4_t abcd_before = abcd, efgh_before = efgh;
    uint32x4_t w[4];
    for (int i = 0; i < 4; ++i) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * i)));
    for (int i = 0; i < 16; ++i) {
      const uint32x4_t k = vaddq_u32(w[0], vld1q_u32(kRounds + 4 * i)), abcd_here = abcd;
      abcd = vsha256hq_u32(abcd, efgh, k);
      efgh = vsha256h2q_u32(efgh, abcd_here, k);
      const uint32x4_t next = vsha256su1q_u32(vsha256su0q_u32(w[0], w[1]), w[2], w[3]);
      w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = next;
    }
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}
#endif

void blocks_into(uint32_t* state, const uint8_t* data, size_t blocks, bool in_software) {
#if defined(FASTAGG_SHA)
  static const bool has = has_instruction();
  if (has && !in_software) return hardware(state, data, blocks);
#endif
  (void)in_software;
  portable(state, data, blocks);
}

}  // namespace

Sha256& Sha256::add(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  size_t held = size_ % 64;
  size_ += size;
  if (held > 0) {
    const size_t count = std::min(64 - held, size);
    if (count > 0) std::memcpy(rest_ + held, bytes, count);
    bytes += count, size -= count, held += count;
    if (held < 64) return *this;
    blocks_into(state_, rest_, 1, in_software_);
  }
  blocks_into(state_, bytes, size / 64, in_software_);
  if (size % 64 > 0) std::memcpy(rest_, bytes + size / 64 * 64, size % 64);
  return *this;
}

Digest Sha256::digest() {
  const uint64_t bits = 8 * size_;
  uint8_t end[72] = {0x80};
  const size_t zeros = (119 - size_ % 64) % 64 + 1;  // the bytes before the length, including 0x80
  for (int i = 0; i < 8; ++i) end[zeros + static_cast<size_t>(i)] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  add(end, zeros + 8);
  Digest digest;
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace fastagg::cpu
