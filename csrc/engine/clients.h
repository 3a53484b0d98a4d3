// Gives each client a place, the client's index in arrays such as the roster's. If a server has a fixed number n of
// clients, a client's number in 0..n-1 is its place, and nothing is stored. Otherwise a client takes 8 bytes and a bit.
// A number also takes 4 bytes in an index that is at most 7/8 full. A name, or a number of 2^63 or more, also takes an
// entry of a map.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "../client_id.h"

namespace fastagg::engine {

class Clients {
 public:
  // `numbered` >= 0: the ids are the integers 0..numbered-1. Negative: every id is accepted.
  explicit Clients(int64_t numbered = -1) : numbered_(numbered) {}
  int64_t numbered() const { return numbered_; }
  // Throws Refusal, kUnknownClient, if the id is not allowed.
  void check(const ClientId& id) const;
  int64_t find(const ClientId& id) const;  // returns the place; -1: no such client; throws as `check`
  ClientId at(int64_t place) const;
  // Returns a number that tells apart the clients that have had the same place, one after the other. The number depends
  // only on the ids and on the order of calls, so a replay of the log gets the same number.
  int64_t token(int64_t place) const;
  // Returns a hash of a client's id, from the id or the place. The hash is never 0. Few clients share a hash.
  static uint32_t mark(const ClientId& id);
  uint32_t mark(int64_t place) const noexcept;

  // Gives a client that has no place the place that became free last, or a new one. If `add` throws, it added nothing.
  int64_t add(const ClientId& id);
  void remove(int64_t place) noexcept;  // frees the place
  int64_t nbytes() const;

 private:
  size_t home(int64_t number) const;
  size_t entry_of(int64_t number) const;  // the index entry of the number, or the empty entry where it would be added
  void grow();

  struct Name {
    int32_t place;
    uint32_t life;  // differs if the same name is removed and added again
  };
  using Names = std::unordered_map<std::string, Name>;
  const Names::value_type& name_at(int64_t place) const;

  int64_t numbered_;
  std::vector<int64_t> ids_;  // by place: the number, or the address of the name's entry; if free: the next free place
  std::vector<bool> named_;
  std::vector<int32_t> index_;  // hash table of numbers' places, with open addressing; -1: empty; size: a power of two
  size_t numbers_ = 0;
  Names names_;
  uint32_t lives_ = 0;
  int64_t free_ = -1;
};

}  // namespace fastagg::engine
