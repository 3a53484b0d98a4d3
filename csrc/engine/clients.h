// Which client has which place in the ledger. A client whose id is a number takes 8 bytes, and its share of an index
// with 4 bytes an entry that is between 7/16 and 7/8 full; one with a name takes an entry of a map. Where clients are
// numbered, their numbers are their places, and nothing is kept.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "../client_id.h"

namespace fastagg::engine {

class Clients {
 public:
  // `numbered` >= 0: the ids are the whole numbers below it. Negative: every id is accepted.
  explicit Clients(int64_t numbered = -1) : numbered_(numbered) {}
  int64_t numbered() const { return numbered_; }
  // Throws Refusal, kUnknownClient: the id is not one of those numbers.
  void check(const ClientId& id) const;
  int64_t find(const ClientId& id) const;  // its place; -1: it has none. Throws Refusal, as `check`
  ClientId at(int64_t place) const;
  // Tells clients apart that have had the same place. It depends on the order of calls alone, so a replay has the
  // same.
  int64_t token(int64_t place) const;
  // A mark of a client, by its id or its place: not 0, and few clients share one.
  static uint32_t mark(const ClientId& id);
  uint32_t mark(int64_t place) const noexcept;

  // Gives a client a place: the one that became free last, or a new one. If it throws, nothing has changed.
  int64_t add(const ClientId& id);
  void remove(int64_t place) noexcept;  // its place is free
  int64_t nbytes() const;

 private:
  size_t home(int64_t number) const;
  size_t entry_of(int64_t number) const;  // where the index has it, or would
  void grow();

  struct Name {
    int32_t place;
    uint32_t life;  // the same name, forgotten and added again, is another client
  };
  using Names = std::unordered_map<std::string, Name>;
  const Names::value_type& name_at(int64_t place) const;

  int64_t numbered_;
  std::vector<int64_t> ids_;  // by place: the number, or where the name's entry lies; of a free one, the next free one
  std::vector<bool> named_;
  std::vector<int32_t> index_;  // places of numbers, by open addressing; -1: none. Its size is a power of two
  size_t numbers_ = 0;
  Names names_;
  uint32_t lives_ = 0;
  int64_t free_ = -1;
};

}  // namespace fastagg::engine
