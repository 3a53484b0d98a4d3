// Which slot of a file every client's row is in, the checksums of what is in the slots, and which slots are free.
//
// A row that changes goes to another slot. Its old slot is free at once, unless a checkpoint refers to it: then it is
// free when that checkpoint is given up. A checkpoint is the list of slots with their checksums.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "slot_file.h"

namespace fastagg::store {

class Places {
 public:
  // `sums`: checksums of a slot. `keep`: checkpoints whose rows stay.
  Places(int64_t clients, int64_t sums, int64_t keep);

  int64_t clients() const { return static_cast<int64_t>(slots_.size()); }
  int64_t of(int64_t client) const { return slots_[static_cast<size_t>(client)]; }  // negative: no row
  const uint32_t* sums(int64_t slot) const { return sums_.data() + slot * per_slot_; }
  void set_sum(int64_t slot, int64_t which, uint32_t sum) noexcept {
    sums_[static_cast<size_t>(slot * per_slot_ + which)] = sum;
  }

  // So many rows will be moved or dropped: it cannot fail then.
  void make_room_for(size_t rows) { make_room(free_, rows); }
  // A slot for one row, of which nothing is known yet, and room for its `move`.
  void reserve(SlotFile& file);
  // The client's row is in the reserved slot from now on; the slot.
  int64_t move(int64_t client) noexcept;
  // Whether the client has a row that no cut knows.
  bool is_new(int64_t client) const { return of(client) >= 0 && cut_[static_cast<size_t>(of(client))] < 0; }
  // The client has no row any more.
  void drop(int64_t client) noexcept;

  struct Cut {
    int64_t number = 0;
    std::vector<int64_t> slots;  // by client
    std::vector<uint32_t> sums;  // of the rows that are there, in order
  };
  Cut cut();
  std::vector<int64_t> kept_with(int64_t number) const;
  void confirm(int64_t number);
  // A cut that counts: its number, and its slots by client.
  using CountingCut = std::pair<int64_t, std::vector<int64_t>>;
  // `others`: cuts that still count, the one that was made last at the end; `last`: no cut had a larger number. Throws
  // std::invalid_argument, with nothing changed, for a cut that cannot be of a file of so many slots.
  void load(const Cut& cut, const std::vector<CountingCut>& others, int64_t last, int64_t slots_in_file);

  int64_t nbytes() const;

 private:
  template <typename T>
  static void make_room(std::vector<T>& values, size_t more) {
    if (values.capacity() < values.size() + more) values.reserve(2 * values.size() + more + 16);
  }

  int64_t per_slot_, keep_;
  std::vector<int64_t> slots_;  // by client
  std::vector<uint32_t> sums_;  // by slot
  std::vector<int64_t> cut_;    // by slot: the last cut that has it; negative: none
  std::vector<int64_t> free_;
  int64_t cuts_ = 0, reserved_ = -1;
  std::vector<int64_t> confirmed_;
};

}  // namespace fastagg::store
