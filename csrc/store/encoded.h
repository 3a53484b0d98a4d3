// An encoded update in memory that nobody writes to once it is read or made. Its bytes were checked.
#pragma once

#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "../plan.h"
#include "vector.h"

namespace fastagg::store {

class Encoded : public Wire, public std::enable_shared_from_this<Encoded> {
 public:
  // These bytes if they have an owner, who promises that they never change; otherwise a copy. Throws Refusal,
  // kEncoding, before anything is allocated that is not as large as they are.
  static std::shared_ptr<Encoded> read(const void* bytes, int64_t nbytes, Owner owner = nullptr);
  // Memory for one that will be written: whoever made it writes the arrays, and calls `check`.
  // `format` and `values` are places in WireFormats and ValueCodecs; `count` as in WireHead.
  static std::shared_ptr<Encoded> make(int format, int values, int64_t size, int64_t count);
  void check() const;

  // Its arrays behind the head, as NumPy names their types. docs/encoding.md has this table.
  struct Array {
    WirePart part;
    const char* type;
    int64_t count, begin;  // elements; bytes from the start
  };
  std::vector<Array> arrays() const;
  // The arrays that a head, the first 64 bytes, tells of, and how many bytes there are in all. Throws as `read` does.
  static std::vector<Array> layout(const void* head, int64_t* nbytes);
  Update update() const;
  double squares() const;  // their sum, found once
  uint8_t* data() const { return static_cast<uint8_t*>(memory_.get()); }

 private:
  void take(const WireHead& head, Owner memory);

  Owner memory_;
  mutable std::atomic<double> squares_{std::nan("")};
};

inline bool is_encoded(const Update& update) {
  return update.pieces.size() == 1 && update.pieces.front().dtype == kEncoded;
}
// The header and arrays of an encoded update, on the host or a device. Null: the update is not encoded.
inline const Wire* wire_in(const Update& update) {
  if (update.pieces.size() != 1) return nullptr;
  const Piece& whole = update.pieces.front();
  if (whole.dtype == kDeviceEncoded) return static_cast<const DeviceWire*>(whole.data);
  return whole.dtype == kEncoded ? static_cast<const Wire*>(whole.data) : nullptr;
}
// The encoded update that `update` is. The result keeps its memory.
std::shared_ptr<const Encoded> encoded_in(const Update& update);

}  // namespace fastagg::store
