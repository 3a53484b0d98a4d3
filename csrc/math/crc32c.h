// CRC-32C (Castagnoli's polynomial, reflected: 0x82F63B78; RFC 3720) with a table, one byte at a time. This is the
// specification. It also runs on processors that have no instruction for it.
#pragma once

#include <stdint.h>

namespace fastagg {

struct CrcTable {
  uint32_t of[8][256];  // of[k][b]: byte b followed by k zero bytes
};

constexpr CrcTable crc_table() {
  CrcTable table{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82F63B78u : 0u);
    table.of[0][b] = crc;
  }
  for (int k = 1; k < 8; ++k)
    for (uint32_t b = 0; b < 256; ++b)
      table.of[k][b] = (table.of[k - 1][b] >> 8) ^ table.of[0][table.of[k - 1][b] & 255u];
  return table;
}

}  // namespace fastagg
