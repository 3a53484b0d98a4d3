// The inspector of a server on CUDA. This inspector copies updates from host memory, and computes norms on the device.
#include <cmath>
#include <cstring>

#include "../cpu/cpu.h"
#include "../store/encoded.h"
#include "core.h"
#include "on_cuda.h"

namespace fastagg::engine {
namespace {

// An update of at most this many bytes, as fp32, is kept alive until kernels have read it. For a larger update the
// bindings have told torch not to reuse the memory too early (bindings/arrays.h). With emulated CUDA torch is not told,
// so every update is kept alive.
#if defined(FASTAGG_CUDA_EMULATED)
constexpr int64_t kKept = INT64_MAX;
#else
constexpr int64_t kKept = int64_t{1} << 20;
#endif

class CudaInspector : public Inspector {
 public:
  CudaInspector(const Card& card, const Settings& settings, const DirectionState::Traits& is) : card_(card), is_(is) {
    const int64_t scratch = cuda::measure_scratch(settings.size) * static_cast<int64_t>(sizeof(double));
    scratch_ = card.memory->bytes(scratch);
    card.memory->zero(scratch_.data, scratch);
    if (is.tensors == nullptr) return;
    const std::vector<int64_t> begins = is.tensors->begins();
    const auto first = static_cast<int64_t>(begins.size() * sizeof(int64_t));
    parts_ = card.memory->bytes(first + is.tensors->nbytes());
    card.memory->put(parts_.data, begins.data(), first);
  }

  const Update& numbers(const Answer& answer) const override { return answer.on_host; }

  void inspect(PendingAnswer& pending, bool prepared) const override {
    Answer& answer = *pending.answer;
    if (!pending.record.empty() && !store::is_encoded(answer.on_host)) {
      const Update copy = update_at(pending.operation.parts);
      cpu::copy(answer.on_host, copy);
      if (answer.in_host) answer.update = copy;  // so that the device gets exactly the recorded bytes
    }
    if (prepared && is_.keeps) take(answer);
    if (!prepared) measure(pending);
    if (is_.tensors != nullptr) sum_tensors(answer.update, *is_.tensors);
  }

 private:
  // Copies an update that is in host memory or must be stored. Computes the norm on the device, and waits for the norm.
  void measure(PendingAnswer& pending) const {
    Answer& answer = *pending.answer;
    if (answer.in_host) {
      bring(answer);
    } else if (is_.keeps) {
      take(answer);
    } else {
      hold_theirs(answer);
    }
    answer.in_host = false;
    auto* const sums = reinterpret_cast<double*>(card_.queue->pinned(cuda::kSums * sizeof(double)));
    cuda::measure(answer.update, {}, reinterpret_cast<double*>(scratch_.data), sums, card_.where());
    card_.queue->wait();
    if (is_.combines && answer.update.pieces.front().dtype == kDeviceEncoded) {
      auto& there = *static_cast<DeviceUpdate*>(answer.owner.get());
      there.numbers = nullptr, there.made = {};  // the queue keeps the decoded numbers until kernels have read them
    }
    pending.norm = norm_of(sums[0]);
  }

  // Computes sums over each tensor of an update on the device, and waits for the results.
  void sum_tensors(const Update& update, cpu::Tensors& tensors) const {
    const auto places = static_cast<int64_t>(tensors.begins().size());
    auto* const begins = reinterpret_cast<int64_t*>(parts_.data);
    auto* const sums = reinterpret_cast<double*>(begins + places);
    cuda::sum_parts(update, {begins, places - 1, tensors.m, sums}, card_.where());
    cuda::copy_now(tensors.parts(), sums, tensors.nbytes(), card_.where());
  }

  // Copies an update within the device's memory, because the sender may still write to the original.
  void take(Answer& answer) const {
    hold_theirs(answer);
    keep(card_, answer.update, answer.owner);
  }

  void hold_theirs(const Answer& answer) const {
    if (answer.update.size * static_cast<int64_t>(sizeof(float)) <= kKept) card_.queue->hold(answer.owner);
  }

  // Copies an update from host memory to memory that kernels read: to pinned host memory if the update is small and not
  // stored, otherwise to the device's memory.
  void bring(Answer& answer) const {
    if (store::is_encoded(answer.update)) return bring_encoded(answer);
    const int64_t size = answer.update.size;
    const auto bytes = static_cast<size_t>(size) * sizeof(float);
    char* const pinned = card_.queue->pinned(bytes);
    char* at = pinned;
    for (const Piece& piece : answer.update.pieces) {
      std::memcpy(at, piece.data, static_cast<size_t>(piece.size) * sizeof(float));
      at += static_cast<size_t>(piece.size) * sizeof(float);
    }
    answer.owner = nullptr;
    const void* there = pinned;
    if (bytes > kFew || is_.keeps) {
      const store::Vector made = card_.memory->bytes(static_cast<int64_t>(bytes));
      cuda::copy(made.data, pinned, static_cast<int64_t>(bytes), card_.where());
      card_.queue->hold(made.owner);
      answer.owner = made.owner;
      there = made.data;
    }
    answer.update = {};
    answer.update.add(there, size, kFloat32);
  }

  // Sends an encoded update to the device, which then decodes it.
  void bring_encoded(Answer& answer) const {
    const auto from = store::encoded_in(answer.update);
    const auto there = std::make_shared<DeviceUpdate>(*from, card_.memory->bytes(from->nbytes));
    there->made = card_.memory->vector(from->size);
    char* const pinned = card_.queue->pinned(static_cast<size_t>(from->nbytes));
    std::memcpy(pinned, from->bytes, static_cast<size_t>(from->nbytes));
    cuda::copy(there->sent.data, pinned, from->nbytes, card_.where());
    cuda::decode(*there, there->made.data, card_.where());
    there->numbers = there->made.data;
    for (const store::Owner& owner : {there->sent.owner, there->made.owner, store::Owner(there)})
      card_.queue->hold(owner);
    answer.owner = there;
    answer.update = {};
    answer.update.add(static_cast<const DeviceWire*>(there.get()), from->size, kDeviceEncoded);
  }

  const Card card_;
  const DirectionState::Traits& is_;
  store::Vector scratch_;  // working memory for norms
  store::Vector parts_;    // where each tensor begins, and the sums over tensors
};

}  // namespace

std::unique_ptr<Inspector> inspector_on(const Card& card, const Settings& settings, const DirectionState& direction) {
  return std::make_unique<CudaInspector>(card, settings, direction.is);
}

void keep(const Card& card, Update& update, store::Owner& owner) {
  const bool whole = update.pieces.size() == 1;
  const Dtype dtype = whole ? update.pieces.front().dtype : kFloat32;
  const int64_t nbytes = update.size * (dtype == kFloat32 ? 4 : 2), size = update.size;
  const store::Vector made = card.memory->bytes(nbytes);
  if (whole) {
    cuda::copy(made.data, update.pieces.front().data, nbytes, card.where());
  } else {
    cuda::accumulate(update, nullptr, 1.0, made.data, card.where());
  }
  card.queue->hold(made.owner);
  owner = made.owner;
  update = {};
  update.add(made.data, size, dtype);
}

}  // namespace fastagg::engine
