// A client's id: an integer of 64 bits, signed or unsigned, or a text. An id is a value, not a reference, because the
// log stores ids, and a task may end long after the call that named the client.
#pragma once

#include <cstdint>
#include <string>

namespace fastagg {

struct ClientId {
  enum IdKind : uint8_t { kNumber, kName, kLarge };  // kLarge: 2^63 and above, because some frameworks draw such ids
  IdKind kind = kNumber;
  int64_t number = 0;  // for kLarge: the bits of an unsigned number
  std::string name;    // UTF-8

  static ClientId of(int64_t number) { return {kNumber, number, {}}; }
  bool operator==(const ClientId& other) const {
    return kind == other.kind && number == other.number && name == other.name;
  }
  // Numbers sort before names.
  bool operator<(const ClientId& other) const;
};

constexpr int64_t kLongestName = 256;  // in characters

// Returns the id as error messages show it: in Python's notation, and shortened if it is long.
std::string shown(const ClientId& id);

}  // namespace fastagg
