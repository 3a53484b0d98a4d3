// A client's id: a 64-bit integer, signed or unsigned, or a text. A ClientId owns its text, because the log stores ids
// and a task may end long after the call that named the client.
#pragma once

#include <cstdint>
#include <string>

namespace fastagg {

struct ClientId {
  enum IdKind : uint8_t { kNumber, kName, kLarge };  // kLarge: an integer of at least 2^63
  IdKind kind = kNumber;
  int64_t number = 0;  // for kLarge: the bits of a uint64_t
  std::string name;    // UTF-8

  static ClientId of(int64_t number) { return {kNumber, number, {}}; }
  bool operator==(const ClientId& other) const {
    return kind == other.kind && number == other.number && name == other.name;
  }
  // Numbers sort before names.
  bool operator<(const ClientId& other) const;
};

constexpr int64_t kLongestName = 256;  // the most characters in a name

// Returns the id in Python's notation, for error messages. A text longer than 80 characters is shortened.
std::string shown(const ClientId& id);

}  // namespace fastagg
