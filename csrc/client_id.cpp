// The order of client ids, and their form in error messages.
#include "client_id.h"

#include <cstdio>

namespace fastagg {

bool ClientId::operator<(const ClientId& other) const {
  if (kind == kName || other.kind == kName) {
    if (kind != other.kind) return kind != kName;
    return name < other.name;  // UTF-8 sorts as code points do
  }
  if (kind != other.kind) return kind == kNumber;
  if (kind == kLarge) return static_cast<uint64_t>(number) < static_cast<uint64_t>(other.number);
  return number < other.number;
}

std::string shown(const ClientId& id) {
  if (id.kind == ClientId::kNumber) return std::to_string(id.number);
  if (id.kind == ClientId::kLarge) return std::to_string(static_cast<uint64_t>(id.number));
  constexpr size_t kMost = 80;
  std::string text = "'";
  for (size_t at = 0; at < id.name.size() && text.size() < kMost;) {
    const auto first = static_cast<uint8_t>(id.name[at]);
    const int more = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
    uint32_t point = more == 0 ? first : first & (0x3fu >> more);
    for (int i = 1; i <= more && at + static_cast<size_t>(i) < id.name.size(); ++i)
      point = point << 6 | (static_cast<uint8_t>(id.name[at + static_cast<size_t>(i)]) & 0x3fu);
    at += static_cast<size_t>(more) + 1;
    char out[12];
    if (point == '\'' || point == '\\') {
      std::snprintf(out, sizeof out, "\\%c", static_cast<char>(point));
    } else if (point >= 0x20 && point < 0x7f) {
      std::snprintf(out, sizeof out, "%c", static_cast<char>(point));
    } else {
      std::snprintf(out, sizeof out, point < 0x100 ? "\\x%02x" : point < 0x10000 ? "\\u%04x" : "\\U%08x", point);
    }
    text += out;
  }
  return text.size() < kMost ? text + "'" : text.substr(0, kMost - 3) + "...";
}

}  // namespace fastagg
