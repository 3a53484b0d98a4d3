// A RowCut gives a checkpoint the stored rows of clients (plan.h) as they were at one moment, although the rows stay in
// use. A row is copied before it changes, unless the checkpoint has the row already.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../plan.h"
#include "vector.h"

namespace fastagg::store {

class RowCut {
 public:
  // `slots`: the slots of the rows, in the rows' order in the checkpoint. `owner` keeps the memory of `rows` alive.
  RowCut(const Rows& rows, const std::vector<int64_t>& slots, std::shared_ptr<Memory> memory, Owner owner)
      : count(static_cast<int64_t>(slots.size())), rows_(rows), memory_(std::move(memory)), owner_(std::move(owner)) {
    for (const int64_t slot : slots) left_.emplace(slot, static_cast<int64_t>(left_.size()));
  }
  const int64_t count;  // the number of rows in the checkpoint

  // A row for the checkpoint. `place` is the row's index in the checkpoint.
  struct CutRow {
    int64_t place;
    std::vector<char> data, scales;
  };
  // Must be called before the row in `slot` changes. The callers of `before` and of `next` hold the server's lock.
  void before(int64_t slot) {
    const auto entry = left_.find(slot);
    if (entry == left_.end()) return;
    saved_.push_back(copy_of(*entry));
    left_.erase(entry);
  }
  // Returns a row that was not returned before, or nullopt if there is no such row. The order of rows is not defined.
  std::optional<CutRow> next() {
    if (saved_.empty() && left_.empty()) return std::nullopt;
    if (saved_.empty()) before(left_.begin()->first);
    CutRow row = std::move(saved_.back());
    saved_.pop_back();
    return row;
  }

 private:
  CutRow copy_of(const std::pair<const int64_t, int64_t>& entry) const {
    const fastagg::Row row = rows_.row(entry.first);
    CutRow copy{entry.second, std::vector<char>(static_cast<size_t>(rows_.row_bytes())),
                std::vector<char>(static_cast<size_t>(rows_.row_scales()) * sizeof(float))};
    memory_->get(copy.data.data(), row.data, rows_.row_bytes());
    if (row.scales != nullptr) memory_->get(copy.scales.data(), row.scales, static_cast<int64_t>(copy.scales.size()));
    return copy;
  }

  const Rows rows_;
  const std::shared_ptr<Memory> memory_;
  const Owner owner_;
  std::unordered_map<int64_t, int64_t> left_;  // slot -> index in the checkpoint, for rows that are not copied yet
  std::vector<CutRow> saved_;                  // copies that `next` has not returned yet
};

}  // namespace fastagg::store
