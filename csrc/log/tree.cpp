#include "tree.h"

#include <algorithm>
#include <cstring>

namespace fastagg::log {
namespace {

Digest joined(const Digest& left, const Digest& right) {
  static constexpr uint8_t kInner = 1;
  return cpu::Sha256().add(&kInner, 1).add(left.data(), left.size()).add(right.data(), right.size()).digest();
}

}  // namespace

void Tree::add(const Digest& leaf) noexcept {
  Digest digest = leaf;
  size_t last = peaks();
  for (uint64_t count = count_; (count & 1u) != 0; count >>= 1) digest = joined(peaks_[--last], digest);
  peaks_[last] = digest;
  ++count_;
}

Digest Tree::root() const noexcept {
  size_t last = peaks();
  if (last == 0) return cpu::Sha256().digest();
  Digest digest = peaks_[--last];
  while (last > 0) digest = joined(peaks_[--last], digest);
  return digest;
}

Tree Tree::restored(uint64_t base, uint64_t count, const uint8_t* peaks) {
  Tree tree = from(base);
  tree.count_ = count;
  std::memcpy(tree.peaks_.data(), peaks, tree.peaks() * sizeof(Digest));
  return tree;
}

bool Tree::operator==(const Tree& other) const {
  return known == other.known && base == other.base && count_ == other.count_ &&
         std::equal(peaks_.begin(), peaks_.begin() + static_cast<ptrdiff_t>(peaks()), other.peaks_.begin());
}

}  // namespace fastagg::log
