// A client's id: a whole number of 64 bits, signed or not, or a text. It is a value, not a reference, because the log
// writes it down and a task may end long after the call that named the client.
#pragma once

#include <cstdint>
#include <string>

namespace fastagg {

struct ClientId {
  enum IdKind : uint8_t { kNumber, kName, kLarge };  // kLarge: 2^63 and above; some frameworks draw such ids
  IdKind kind = kNumber;
  int64_t number = 0;  // kLarge: the bits of an unsigned number
  std::string name;    // UTF-8

  static ClientId of(int64_t number) { return {kNumber, number, {}}; }
  bool operator==(const ClientId& other) const {
    return kind == other.kind && number == other.number && name == other.name;
  }
  // Numbers first, then names, each in their own order.
  bool operator<(const ClientId& other) const;
};

constexpr int64_t kLongestName = 256;  // characters of a client's id

// The id in an error message, as Python writes it; a long one is cut.
std::string shown(const ClientId& id);

}  // namespace fastagg
