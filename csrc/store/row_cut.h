// The rows of a client cache at one moment, for a checkpoint that is written while the cache goes on: a row is copied
// before it changes, unless it is written already.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../plan.h"
#include "vector.h"

namespace fastagg::store {

class RowCut {
 public:
  // `slots`: which rows, each at its own place in the checkpoint. `owner` keeps the rows alive.
  RowCut(const Rows& rows, const std::vector<int64_t>& slots, std::shared_ptr<Memory> memory, Owner owner);

  // A slot is about to change. Whoever calls it, and `next`, holds the server's lock.
  void before(int64_t slot);
  // A row that is not written yet: its place, its data and its scales.
  struct Row {
    int64_t place;
    std::vector<char> data, scales;
  };
  std::optional<Row> next();
  int64_t count() const { return count_; }

 private:
  Row copy_of(int64_t slot, int64_t place) const;

  Rows rows_;
  std::shared_ptr<Memory> memory_;
  Owner owner_;
  int64_t count_;
  std::unordered_map<int64_t, int64_t> left_;  // slot -> place
  std::vector<Row> saved_;
};

}  // namespace fastagg::store
