// The place of each client in the ledger. A client with a number takes 8 bytes, and a part of an index. The index has
// entries of 4 bytes, and is between 7/16 and 7/8 full. A client with a name takes an entry of a map. If clients are
// numbered, their numbers are their places, and nothing is stored.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "../client_id.h"

namespace fastagg::engine {

class Clients {
 public:
  // `numbered` >= 0: the ids are the integers below it. Negative: every id is accepted.
  explicit Clients(int64_t numbered = -1) : numbered_(numbered) {}
  int64_t numbered() const { return numbered_; }
  // Throws Refusal, kUnknownClient, if the id is not allowed.
  void check(const ClientId& id) const;
  int64_t find(const ClientId& id) const;  // the client's place, or -1. Throws as `check` does
  ClientId at(int64_t place) const;
  // A number that differs for two clients that have had the same place. The number depends only on the order of calls,
  // so a replay gets the same number.
  int64_t token(int64_t place) const;
  // A hash of a client, from the client's id or place. The hash is never 0. Few clients share a hash.
  static uint32_t mark(const ClientId& id);
  uint32_t mark(int64_t place) const noexcept;

  // Gives a client the place that became free last, or a new place. If `add` throws, nothing has changed.
  int64_t add(const ClientId& id);
  void remove(int64_t place) noexcept;  // frees the place
  int64_t nbytes() const;

 private:
  size_t home(int64_t number) const;
  size_t entry_of(int64_t number) const;  // the place of the number in the index, or the place for it
  void grow();

  struct Name {
    int32_t place;
    uint32_t life;  // another number if the same name is forgotten and added again
  };
  using Names = std::unordered_map<std::string, Name>;
  const Names::value_type& name_at(int64_t place) const;

  int64_t numbered_;
  std::vector<int64_t>
      ids_;  // by place: the number, or the address of the name's entry; of a free place, the next free place
  std::vector<bool> named_;
  std::vector<int32_t> index_;  // an open-addressing table of numbers' places; -1: empty; its size is a power of two
  size_t numbers_ = 0;
  Names names_;
  uint32_t lives_ = 0;
  int64_t free_ = -1;
};

}  // namespace fastagg::engine
