// Computes CRC-32C (RFC 3720; Castagnoli's polynomial, reflected) by the processor's instruction or with tables.
#include <cstring>

#include "cpu.h"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

namespace fastagg::cpu {
namespace {

struct Tables {
  uint32_t of[8][256];  // of[k][b]: the checksum of byte b followed by k zero bytes
};

constexpr Tables made() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82F63B78u : 0u);
    tables.of[0][b] = crc;
  }
  for (int k = 1; k < 8; ++k)
    for (uint32_t b = 0; b < 256; ++b)
      tables.of[k][b] = (tables.of[k - 1][b] >> 8) ^ tables.of[0][tables.of[k - 1][b] & 255u];
  return tables;
}

constexpr Tables kTable = made();

uint64_t word_at(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

uint32_t portable(uint32_t crc, const uint8_t* data, int64_t count) {
  for (; count >= 8; count -= 8, data += 8) {
    const uint64_t word = word_at(data) ^ crc;
    crc = 0;
    for (int k = 0; k < 8; ++k) crc ^= kTable.of[7 - k][word >> (8 * k) & 255u];
  }
  for (; count > 0; --count) crc = (crc >> 8) ^ kTable.of[0][(crc ^ *data++) & 255u];
  return crc;
}

// The effect of a fixed number of appended zero bytes on a checksum: a matrix over bits. times(crc) applies it.
struct Zeros {
  uint32_t column[32];

  uint32_t times(uint32_t crc) const {
    uint32_t out = 0;
    for (int bit = 0; bit < 32; ++bit) out ^= (0u - (crc >> bit & 1u)) & column[bit];
    return out;
  }
};

Zeros zeros(int64_t bytes) {
  Zeros matrix{};
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t crc = 1u << bit;
    for (int64_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTable.of[0][crc & 255u];
    matrix.column[bit] = crc;
  }
  return matrix;
}

// A CRC instruction takes three cycles, but one can start in each cycle. So the loop computes three parts of kPart
// bytes in turns. To join the checksums, each checksum is advanced past as many zero bytes as the later parts have.
constexpr int64_t kPart = 4096;

#if defined(__x86_64__)
#define FASTAGG_CRC __attribute__((target("sse4.2")))
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
FASTAGG_CRC inline uint32_t crc_word(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}
FASTAGG_CRC inline uint32_t crc_byte(uint32_t crc, uint8_t byte) { return _mm_crc32_u8(crc, byte); }
#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#define FASTAGG_CRC __attribute__((target("+crc")))
#if defined(__linux__)
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
bool has_instruction() { return true; }  // all of Apple's 64-bit processors have the instruction
#endif
FASTAGG_CRC inline uint32_t crc_word(uint32_t crc, uint64_t word) { return __crc32cd(crc, word); }
FASTAGG_CRC inline uint32_t crc_byte(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }
#endif

#if defined(FASTAGG_CRC)
FASTAGG_CRC uint32_t hardware(uint32_t crc, const uint8_t* data, int64_t count) {
  static const Zeros one_part = zeros(kPart), two = zeros(2 * kPart);
  for (; count >= 3 * kPart; count -= 3 * kPart, data += 3 * kPart) {
    uint32_t a = crc, b = 0, c = 0;
    for (int64_t i = 0; i < kPart; i += 8) {
      a = crc_word(a, word_at(data + i));
      b = crc_word(b, word_at(data + kPart + i));
      c = crc_word(c, word_at(data + 2 * kPart + i));
    }
    crc = two.times(a) ^ one_part.times(b) ^ c;
  }
  for (; count >= 8; count -= 8, data += 8) crc = crc_word(crc, word_at(data));
  for (; count > 0; --count) crc = crc_byte(crc, *data++);
  return crc;
}
#endif

}  // namespace

uint32_t crc32c(const void* data, int64_t count, uint32_t before, bool in_software) {
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
#if defined(FASTAGG_CRC)
  static const bool has = has_instruction();
  if (has && !in_software) return ~hardware(~before, bytes, count);
#endif
  (void)in_software;
  return ~portable(~before, bytes, count);
}

}  // namespace fastagg::cpu
