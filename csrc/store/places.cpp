#include "places.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace fastagg::store {
namespace {

template <typename T>
void make_room(std::vector<T>& values, size_t more) {
  if (values.capacity() < values.size() + more) values.reserve(2 * values.size() + more + 16);
}

}  // namespace

Places::Places(int64_t clients, int64_t sums, int64_t keep)
    : per_slot_(sums), keep_(keep), slots_(static_cast<size_t>(clients), -1) {}

void Places::make_room_for(size_t rows) {
  make_room(free_, rows);
  make_room(retired_, rows);
}

void Places::reserve(SlotFile& file) {
  make_room_for(1);
  if (reserved_ >= 0) return;
  if (!free_.empty()) {
    reserved_ = free_.back();
    free_.pop_back();
    return;
  }
  if (used_ == file.slots()) file.grow(used_ + 1);
  make_room(born_, 1);
  sums_.reserve(born_.capacity() * static_cast<size_t>(per_slot_));
  born_.resize(static_cast<size_t>(used_ + 1));
  sums_.resize(born_.size() * static_cast<size_t>(per_slot_));
  reserved_ = used_++;
}

void Places::retire(int64_t slot) noexcept {
  if (slot < 0) return;
  if (born_[static_cast<size_t>(slot)] == cuts_) {
    free_.push_back(slot);
  } else {
    retired_.emplace_back(cuts_, slot);
  }
}

int64_t Places::move(int64_t client) noexcept {
  int64_t& slot = slots_[static_cast<size_t>(client)];
  retire(slot);
  slot = reserved_;
  reserved_ = -1;
  born_[static_cast<size_t>(slot)] = cuts_;
  return slot;
}

void Places::drop(int64_t client) noexcept {
  int64_t& slot = slots_[static_cast<size_t>(client)];
  retire(slot);
  slot = -1;
}

Places::Cut Places::cut() {
  Cut cut;
  cut.slots = slots_;
  for (const int64_t slot : slots_)
    if (slot >= 0) cut.sums.insert(cut.sums.end(), sums(slot), sums(slot) + per_slot_);
  cut.number = ++cuts_;
  return cut;
}

std::vector<int64_t> Places::kept_with(int64_t number) const {
  std::vector<int64_t> kept = confirmed_;
  kept.erase(std::remove(kept.begin(), kept.end(), number), kept.end());
  kept.push_back(number);
  if (static_cast<int64_t>(kept.size()) > keep_) kept.erase(kept.begin(), kept.end() - keep_);
  return kept;
}

void Places::confirm(int64_t number) {
  confirmed_ = kept_with(number);
  const int64_t oldest =
      static_cast<int64_t>(confirmed_.size()) < keep_ ? 0 : *std::min_element(confirmed_.begin(), confirmed_.end());
  size_t given_up = 0;
  while (given_up < retired_.size() && retired_[given_up].first < oldest) ++given_up;
  make_room(free_, given_up);
  for (size_t i = 0; i < given_up; ++i) free_.push_back(retired_[i].second);
  retired_.erase(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(given_up));
}

void Places::load(const Cut& cut, const std::vector<CountingCut>& others, int64_t last, int64_t slots_in_file) {
  constexpr int64_t kUsed = INT64_MAX;
  std::vector<int64_t> needed(static_cast<size_t>(slots_in_file), -1);  // by slot: the last cut that has it
  size_t rows = 0;
  for (const int64_t slot : cut.slots) {
    if (slot < 0) continue;
    if (slot >= slots_in_file) throw std::invalid_argument("a row lies behind the end of the rows' file");
    if (std::exchange(needed[static_cast<size_t>(slot)], kUsed) == kUsed)
      throw std::invalid_argument("two clients have one row");
    ++rows;
  }
  if (cut.slots.size() != slots_.size() || cut.sums.size() != rows * static_cast<size_t>(per_slot_))
    throw std::invalid_argument("rows of another number of clients or parameters");
  if (cut.number < 0) throw std::invalid_argument("a checkpoint's number");
  cuts_ = std::max(cut.number, last);
  confirmed_.clear();
  for (const auto& [number, slots] : others) {
    confirmed_.push_back(number);
    for (const int64_t slot : slots)
      if (slot >= 0 && slot < slots_in_file)
        needed[static_cast<size_t>(slot)] = std::max(needed[static_cast<size_t>(slot)], number);
  }
  confirmed_.push_back(cut.number);
  // No row is of this cut, or of a later one: each stays when its client has another one.
  born_.assign(needed.size(), -1);
  sums_.assign(needed.size() * static_cast<size_t>(per_slot_), 0);
  free_.clear();
  retired_.clear();
  for (int64_t slot = slots_in_file; slot-- > 0;) {
    const int64_t number = needed[static_cast<size_t>(slot)];
    if (number < 0) free_.push_back(slot);
    if (number >= 0 && number != kUsed) retired_.emplace_back(number, slot);
  }
  std::sort(retired_.begin(), retired_.end());
  slots_ = cut.slots;
  auto from = cut.sums.begin();
  for (const int64_t slot : slots_) {
    if (slot < 0) continue;
    std::copy_n(from, per_slot_, sums_.begin() + slot * per_slot_);
    from += per_slot_;
  }
  used_ = slots_in_file;
  reserved_ = -1;
}

int64_t Places::nbytes() const {
  return static_cast<int64_t>((slots_.size() + born_.size()) * sizeof(int64_t) + sums_.size() * sizeof(uint32_t));
}

}  // namespace fastagg::store
