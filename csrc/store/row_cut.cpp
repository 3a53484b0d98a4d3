#include "row_cut.h"

namespace fastagg::store {

RowCut::RowCut(const Rows& rows, const std::vector<int64_t>& slots, std::shared_ptr<Memory> memory, Owner owner)
    : rows_(rows), memory_(std::move(memory)), owner_(std::move(owner)), count_(static_cast<int64_t>(slots.size())) {
  for (size_t i = 0; i < slots.size(); ++i) left_.emplace(slots[i], static_cast<int64_t>(i));
}

RowCut::Row RowCut::copy_of(int64_t slot, int64_t place) const {
  const fastagg::Row row = rows_.row(slot);
  Row found{place, std::vector<char>(static_cast<size_t>(rows_.row_bytes())),
            std::vector<char>(static_cast<size_t>(rows_.row_scales()) * sizeof(float))};
  memory_->get(found.data.data(), row.data, rows_.row_bytes());
  if (row.scales != nullptr) memory_->get(found.scales.data(), row.scales, static_cast<int64_t>(found.scales.size()));
  return found;
}

void RowCut::before(int64_t slot) {
  const auto found = left_.find(slot);
  if (found == left_.end()) return;
  saved_.push_back(copy_of(slot, found->second));
  left_.erase(found);
}

std::optional<RowCut::Row> RowCut::next() {
  if (!saved_.empty()) {
    Row row = std::move(saved_.back());
    saved_.pop_back();
    return row;
  }
  if (left_.empty()) return std::nullopt;
  const auto [slot, place] = *left_.begin();
  Row row = copy_of(slot, place);
  left_.erase(left_.begin());
  return row;
}

}  // namespace fastagg::store
