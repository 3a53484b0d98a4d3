#include "inspector.h"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "../cpu/cpu.h"
#include "../store/encoded.h"
#include "core.h"

namespace fastagg::engine {
namespace {

class CpuInspector : public Inspector {
 public:
  explicit CpuInspector(const DirectionState::Traits& is) : is_(is) {}

  const Update& numbers(const Answer& answer) const override { return answer.update; }

  void look_at(const Answer& answer) const override { norm_of(squares_of(answer, nullptr)); }

  void inspect(PendingAnswer& pending, bool prepared) const override {
    Answer& answer = *pending.answer;
    // An extension, and a direction that stores updates, keep the elements, but the record's memory is reused. So
    // `kept` elements are copied to memory of their own, and from there to the record. Private elements are in such
    // memory already.
    const bool copies = !answer.blob && !store::is_encoded(answer.update);
    const bool has_room = !pending.record.empty() && copies;
    const bool kept = prepared || is_.keeps || answer.is_private;
    if (answer.still && pending.record.empty() && !kept && !answer.base) return limit(pending);
    const double squares = absorb(answer, has_room && !kept ? &pending.operation : nullptr);
    if (has_room && kept) cpu::copy(answer.update, update_at(pending.operation.parts));
    pending.norm = norm_of(squares);
  }

 private:
  // Measures an update that is not copied, because its sender states that nobody writes to it. If somebody does, the
  // kernels still limit each element's magnitude to the measured norm, so all bounds hold.
  void limit(PendingAnswer& pending) const {
    Update& update = pending.answer->update;
    update.limit = HUGE_VALF;  // an earlier attempt may have set the limit
    pending.norm = norm_of(squares_of(*pending.answer, is_.tensors));
    const auto rounded_up = static_cast<float>(std::min(pending.norm * (1.0 + 1e-6), double{FLT_MAX}));
    update.limit = std::max(rounded_up, FLT_MIN);
  }

  // Returns the sum of squares of an update. `tensors`, if not null, also gets the sums over each tensor.
  double squares_of(const Answer& answer, cpu::Tensors* tensors) const {
    if (tensors == nullptr && store::is_encoded(answer.update)) return store::encoded_in(answer.update)->squares();
    return cpu::sum_squares(answer.update, tensors);
  }

  // Copies an update to the record, or to new memory if `record` is null. A private update is not copied. If the answer
  // has a base, the copy is the difference from the base. Returns the copy's sum of squares.
  double absorb(Answer& answer, log::Operation* record) const {
    if (answer.is_private) return squares_of(answer, is_.tensors);
    std::vector<log::Part> parts;
    if (record == nullptr) {
      parts = parts_of(answer, answer.update);
      size_t nbytes = 0;
      for (const log::Part& part : parts) nbytes += part.nbytes() + log::gap_of(part.nbytes());
      answer.copy = is_.keeps ? shelf_->take(nbytes) : store::new_memory(static_cast<int64_t>(nbytes));
      const auto* at = static_cast<const uint8_t*>(answer.copy.get());
      for (log::Part& part : parts) part.data = at, at += part.nbytes() + log::gap_of(part.nbytes());
    }
    const Update from = std::exchange(answer.update, update_at(record != nullptr ? record->parts : parts));
    void* const to = const_cast<void*>(answer.update.pieces.front().data);
    if (!answer.base) return cpu::absorb(from, answer.update, is_.tensors);
    std::vector<std::atomic<int32_t>> largest(1);
    cpu::fold({{from, answer.base.data, 1.0f, answer.base.dtype}}, nullptr, static_cast<float*>(to), largest);
    return cpu::sum_squares(answer.update, is_.tensors);
  }

  const DirectionState::Traits& is_;
  const std::shared_ptr<store::Shelf> shelf_ = std::make_shared<store::Shelf>();  // memory for stored updates
};

}  // namespace

std::unique_ptr<Inspector> inspector_here(const DirectionState& direction) {
  return std::make_unique<CpuInspector>(direction.is);
}

}  // namespace fastagg::engine
