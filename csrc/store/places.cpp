#include "places.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace fastagg::store {

Places::Places(int64_t clients, int64_t sums, int64_t keep)
    : per_slot_(sums), keep_(keep), slots_(static_cast<size_t>(clients), -1) {}

void Places::reserve(SlotFile& file) {
  make_room_for(1);
  if (reserved_ >= 0) return;
  if (!free_.empty()) {
    reserved_ = free_.back();
    free_.pop_back();
    return;
  }
  const auto used = static_cast<int64_t>(cut_.size());
  if (used == file.slots()) file.grow(used + 1);
  make_room(sums_, static_cast<size_t>(per_slot_));
  cut_.push_back(-1);
  sums_.resize(cut_.size() * static_cast<size_t>(per_slot_));
  reserved_ = used;
}

int64_t Places::move(int64_t client) noexcept {
  drop(client);
  return slots_[static_cast<size_t>(client)] = std::exchange(reserved_, -1);
}

void Places::drop(int64_t client) noexcept {
  const int64_t slot = std::exchange(slots_[static_cast<size_t>(client)], -1);
  if (slot >= 0 && cut_[static_cast<size_t>(slot)] < 0) free_.push_back(slot);
}

Places::Cut Places::cut() {
  Cut cut;
  cut.slots = slots_;
  for (const int64_t slot : slots_)
    if (slot >= 0) cut.sums.insert(cut.sums.end(), sums(slot), sums(slot) + per_slot_);
  cut.number = ++cuts_;
  for (const int64_t slot : slots_)
    if (slot >= 0) cut_[static_cast<size_t>(slot)] = cuts_;
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
  if (static_cast<int64_t>(confirmed_.size()) < keep_) return;
  const int64_t oldest = *std::min_element(confirmed_.begin(), confirmed_.end());
  for (size_t slot = 0; slot < cut_.size(); ++slot) {  // a row that a client has is of the last cut, or of none
    if (cut_[slot] < 0 || cut_[slot] >= oldest) continue;
    free_.push_back(static_cast<int64_t>(slot));
    cut_[slot] = -1;
  }
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
  sums_.assign(needed.size() * static_cast<size_t>(per_slot_), 0);
  free_.clear();
  for (int64_t slot = slots_in_file; slot-- > 0;) {
    int64_t& number = needed[static_cast<size_t>(slot)];
    if (number < 0) free_.push_back(slot);
    if (number == kUsed) number = cuts_;
  }
  cut_ = std::move(needed);
  slots_ = cut.slots;
  auto from = cut.sums.begin();
  for (const int64_t slot : slots_) {
    if (slot < 0) continue;
    std::copy_n(from, per_slot_, sums_.begin() + slot * per_slot_);
    from += per_slot_;
  }
  reserved_ = -1;
}

int64_t Places::nbytes() const {
  return static_cast<int64_t>((slots_.size() + cut_.size()) * sizeof(int64_t) + sums_.size() * sizeof(uint32_t));
}

}  // namespace fastagg::store
