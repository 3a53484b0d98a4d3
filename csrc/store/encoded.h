// An encoded update. Nobody writes to its memory after it was read or made. Its bytes have been checked.
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
  // Reads the bytes in place if `owner` is not null: they must then never change. Otherwise copies the bytes. Throws
  // Refusal, kEncoding, before any allocation that is larger than the bytes.
  static std::shared_ptr<Encoded> read(const void* bytes, int64_t nbytes, Owner owner = nullptr);
  // Allocates an encoded update to be written. The caller writes the arrays, then calls `check`. `format` and `values`
  // are places in WireFormats and ValueCodecs. `count` is as in WireHead.
  static std::shared_ptr<Encoded> make(int format, int values, int64_t size, int64_t count);
  void check() const;

  // An array after the header, with NumPy's name of its type. docs/encoding.md has the table of arrays.
  struct Array {
    WirePart part;
    const char* type;
    int64_t count, begin;  // its number of elements, and its first byte
  };
  std::vector<Array> arrays() const;
  // Returns the arrays that a header (the first 64 bytes) describes. Sets `nbytes` to the number of bytes in all.
  // Throws as `read` does.
  static std::vector<Array> layout(const void* head, int64_t* nbytes);
  Update update() const;
  double squares() const;  // the sum of squares, computed once
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
// Returns the encoded update in `update`. The result keeps the update's memory alive.
std::shared_ptr<const Encoded> encoded_in(const Update& update);

}  // namespace fastagg::store
