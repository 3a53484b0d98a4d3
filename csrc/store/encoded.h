// An encoded update in host memory (docs/encoding.md). After `read` or `check`, the bytes are valid, and nobody may
// write to them.
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
  // Reads an encoded update. If `owner` is not null, the bytes must never change, and are read in place if their
  // address is a multiple of 8. Otherwise copies the bytes. Throws Refusal, kEncoding, if the update is invalid. Checks
  // the header and the length before it allocates memory for the copy.
  static std::shared_ptr<Encoded> read(const void* bytes, int64_t nbytes, Owner owner = nullptr);
  // Allocates an encoded update of `size` elements. The caller writes the arrays, then calls `check`. `format` and
  // `values` are indices in WireFormats and ValueCodecs. `count` is as in WireHead (math/wire.h).
  static std::shared_ptr<Encoded> make(int format, int values, int64_t size, int64_t count);
  void check() const;  // Checks the arrays. Throws Refusal, kEncoding, if a value is invalid.

  // An array behind the header. docs/encoding.md has a table of the arrays. `type`: NumPy's name of the elements' type.
  struct Array {
    WirePart part;
    const char* type;
    int64_t count, begin;  // the number of elements, and the offset in bytes from the start of the header
  };
  std::vector<Array> arrays() const;
  // Returns the arrays that a header (the first 64 bytes) describes. Sets `nbytes` to the length of the encoded update.
  // Throws Refusal, kEncoding, if the header is invalid.
  static std::vector<Array> layout(const void* head, int64_t* nbytes);
  Update update() const;
  double squares() const;  // the sum of the elements' squares, computed by the first call
  uint8_t* data() const { return static_cast<uint8_t*>(memory_.get()); }

 private:
  void take(const WireHead& head, Owner memory);

  Owner memory_;
  mutable std::atomic<double> squares_{std::nan("")};
};

inline bool is_encoded(const Update& update) {
  return update.pieces.size() == 1 && update.pieces.front().dtype == kEncoded;
}
// Returns the header and arrays of an encoded update, on the host or a device. Returns null for any other update.
inline const Wire* wire_in(const Update& update) {
  if (update.pieces.size() != 1) return nullptr;
  const Piece& whole = update.pieces.front();
  if (whole.dtype == kDeviceEncoded) return static_cast<const DeviceWire*>(whole.data);
  return whole.dtype == kEncoded ? static_cast<const Wire*>(whole.data) : nullptr;
}
// Returns the encoded update of which `update` consists (is_encoded). The result keeps the encoded update's memory
// alive.
std::shared_ptr<const Encoded> encoded_in(const Update& update);

}  // namespace fastagg::store
