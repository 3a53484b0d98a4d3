#include "held.h"

#include <cmath>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "../cpu/cpu.h"
#include "../store/encoded.h"
#include "answer.h"
#include "archive.h"
#include "contribution.h"

namespace fastagg::engine {

int64_t HeldUpdate::nbytes() const {
  if (const Wire* const wire = store::wire_in(update)) return wire->nbytes;
  int64_t sum = 0;
  for (const Piece& piece : update.pieces) sum += piece.size * (piece.dtype == kFloat32 ? 4 : 2);
  return sum;
}

DeviceUpdate::DeviceUpdate(const Wire& from, store::Vector bytes_) : sent(std::move(bytes_)) {
  static_cast<Wire&>(*this) = from;
  const auto move = [&](auto*& at) {
    if (at == nullptr) return;
    const auto offset = reinterpret_cast<const uint8_t*>(at) - from.bytes;
    const auto* const base = reinterpret_cast<const uint8_t*>(sent.data);
    at = reinterpret_cast<std::remove_reference_t<decltype(at)>>(base + offset);
  };
  move(bytes), move(codes), move(scales), move(indices), move(ends);
}

HeldUpdate moved(const HeldUpdate& held, store::Memory& memory, bool there) {
  HeldUpdate made;
  made.by = held.by;
  constexpr int64_t kWord = 4;  // each piece begins at a multiple of this many bytes
  const int64_t room = held.nbytes() + kWord * static_cast<int64_t>(held.update.pieces.size());
  const store::Vector bytes = there ? memory.bytes(room) : store::new_vector(room / kWord + 1);
  const auto move = [&](void* to, const void* from, int64_t nbytes) {
    there ? memory.put(to, from, nbytes) : memory.get(to, from, nbytes);
  };
  if (const Wire* const wire = store::wire_in(held.update)) {
    move(bytes.data, wire->bytes, wire->nbytes);
    if (there) {
      const auto encoded = std::make_shared<DeviceUpdate>(*wire, bytes);
      made.owner = encoded;
      made.update.add(static_cast<const DeviceWire*>(encoded.get()), wire->size, kDeviceEncoded);
    } else {
      const auto encoded = store::Encoded::read(bytes.data, wire->nbytes);
      made.owner = encoded;
      made.update = encoded->update();
    }
    return made;
  }
  made.owner = bytes.owner;
  auto* at = reinterpret_cast<char*>(bytes.data);
  for (const Piece& piece : held.update.pieces) {
    const int64_t nbytes = piece.size * (piece.dtype == kFloat32 ? 4 : 2);
    move(at, piece.data, nbytes);
    made.update.add(at, piece.size, piece.dtype);
    at += (nbytes + kWord - 1) / kWord * kWord;
  }
  return made;
}

HeldUpdate taken(const Contribution& contribution, float by) noexcept {
  Answer& from = *contribution.answer;
  HeldUpdate made;
  if (store::is_encoded(from.update)) {
    made.owner = std::const_pointer_cast<store::Encoded>(store::encoded_in(from.update));
  } else {
    made.owner = std::move(from.copy ? from.copy : from.owner);
  }
  made.update = std::move(from.update);
  made.by = by;
  return made;
}

int64_t nbytes_of(const std::vector<HeldUpdate>& all) {
  int64_t sum = 0;
  for (const HeldUpdate& held : all) sum += held.nbytes();
  return sum;
}

void held_fields(Archive& archive, std::vector<HeldUpdate>& all, store::Memory& memory) {
  if (archive.loads ? !archive.has("held") : all.empty()) return;
  std::vector<HeldUpdate> here;
  if (!archive.loads)
    for (const HeldUpdate& waiting : all) here.push_back(memory.is_host() ? waiting : moved(waiting, memory, false));
  archive.held("held", here);
  if (archive.loads) all = std::move(here);
}

double bound_of(const HeldUpdate& waiting, int64_t size) {
  if (waiting.update.size != size) throw std::invalid_argument("a held update of another size");
  const double bound = std::abs(static_cast<double>(waiting.by)) * std::sqrt(cpu::sum_squares(waiting.update));
  check_bound(bound);
  return bound;
}

const void* row_in(const Contribution& contribution, int format) {
  const Wire* const wire = store::wire_in(*contribution.update);
  const bool is_row =
      wire != nullptr && contribution.gain * contribution.weight == 1.0 && wire_facts(wire->format).row == format;
  return is_row ? wire->codes : nullptr;
}

}  // namespace fastagg::engine
