#include "held.h"

#include <cmath>
#include <stdexcept>

#include "../cpu/cpu.h"
#include "../store/encoded.h"
#include "archive.h"
#include "contribution.h"

namespace fastagg::engine {

int64_t HeldUpdate::nbytes() const {
  if (store::is_encoded(update)) return store::encoded_in(update)->nbytes;
  int64_t sum = 0;
  for (const Piece& piece : update.pieces) sum += piece.size * (piece.dtype == kFloat32 ? 4 : 2);
  return sum;
}

double bound_of(const HeldUpdate& one, int64_t size) {
  if (one.update.size != size) throw std::invalid_argument("a held update of another size");
  const double bound = std::abs(static_cast<double>(one.by)) * std::sqrt(cpu::sum_squares(one.update));
  check_bound(bound);
  return bound;
}

const void* row_in(const Contribution& one, int format) {
  const Wire* const wire = store::wire_in(*one.update);
  const bool is_row = wire != nullptr && one.gain * one.weight == 1.0 && row_of_wire(wire->format) == format;
  return is_row ? wire->codes : nullptr;
}

}  // namespace fastagg::engine
