// The digest of a log: the root of the Merkle tree over its records (RFC 9162, section 2.1; SHA-256).
//
// A record's leaf is the hash of 0x00, its head, and its facts: what its body says besides numbers. The head has the
// CRC of all of the body. Where payloads are hashed, the leaf also has the SHA-256 of the numbers. A tree rather than a
// chain, because one record's membership is then proved by a few hundred bytes, not by all records behind it.
#pragma once

#include <array>
#include <cstdint>

#include "../cpu/sha256.h"

namespace fastagg::log {

// The tree over the records base+1, base+2, ...: the roots of its complete subtrees, the largest first.
class Tree {
 public:
  bool known = false;  // whether the digest is that of all records after `base`
  uint64_t base = 0;

  static Tree from(uint64_t base) {
    Tree tree;
    tree.known = true, tree.base = base;
    return tree;
  }
  void add(const Digest& leaf) noexcept;
  Digest root() const noexcept;  // of no records: the hash of nothing
  uint64_t count() const { return count_; }
  size_t peaks() const { return static_cast<size_t>(__builtin_popcountll(count_)); }
  const Digest& peak(size_t index) const { return peaks_[index]; }
  // The tree over `count` records with such peaks: 32 bytes each.
  static Tree restored(uint64_t base, uint64_t count, const uint8_t* peaks);
  bool operator==(const Tree& other) const;
  bool operator!=(const Tree& other) const { return !(*this == other); }

 private:
  uint64_t count_ = 0;
  std::array<Digest, 64> peaks_;
};

}  // namespace fastagg::log
