// Implements queue.h with CUDA events and a ring of pinned memory.
#include <deque>
#include <utility>
#include <vector>

#include "../store/blocking.h"
#include "../store/process.h"
#include "launch.cuh"
#include "queue.h"

namespace fastagg::cuda {
namespace {

constexpr size_t kApart = 16, kFirstRing = size_t{1} << 20;

// The base of objects that belong to one device and one process. A forked child must not use the objects that it
// inherits from its parent. Calls of CUDA may never return in the child, and inherited locks may never be released.
struct ProcessState {
  explicit ProcessState(int device_) : device(device_) {}
  bool forked() const { return store::process() != process; }
  void check_process() const {
    if (forked())
      throw Error("CUDA: this process was forked from the one that its server belongs to: start it by spawning");
  }
  DeviceGuard guard() const { return DeviceGuard(device); }
  // Runs `act` in a destructor. Errors are ignored, because a destructor must not fail. Does nothing in a forked child.
  template <typename Act>
  void give_up(Act act) const noexcept {
    if (forked()) return;
    try {
      const DeviceGuard here = guard();
      act();
    } catch (const Error&) {  // ignored: the device has failed
    }
  }
  const int device, process = store::process();
};

// A block of pinned host memory, which kernels can read directly.
struct PinnedBlock : ProcessState {
  PinnedBlock(int device, size_t size) : ProcessState(device), bytes(size) {
    const DeviceGuard here = guard();
    void* made = nullptr;
    check(cudaHostAlloc(&made, size, cudaHostAllocPortable | cudaHostAllocMapped), "pinned memory");
    at = static_cast<char*>(made);
  }
  ~PinnedBlock() {
    give_up([this] { (void)cudaFreeHost(at); });
  }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  char* at;
  size_t bytes;
};

// Makes CUDA events. Events that are given back are used again.
class EventPool : public ProcessState {
 public:
  using ProcessState::ProcessState;
  ~EventPool() {
    give_up([this] {
      for (const cudaEvent_t each : events_) (void)cudaEventDestroy(each);
    });
  }
  cudaEvent_t event() {
    if (!events_.empty()) {
      const cudaEvent_t spare = events_.back();
      events_.pop_back();
      return spare;
    }
    const DeviceGuard here = guard();
    cudaEvent_t made{};
    check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "an event");
    return made;
  }
  void give_back(cudaEvent_t event) noexcept {
    if (forked()) return;
    try {
      events_.push_back(event);
    } catch (const std::bad_alloc&) {
      give_up([event] { (void)cudaEventDestroy(event); });
    }
  }

 private:
  std::vector<cudaEvent_t> events_;
};

struct Event {
  explicit Event(std::shared_ptr<EventPool> of) : pool(std::move(of)), event(pool->event()) {}
  ~Event() { pool->give_back(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const {
    const DeviceGuard here = pool->guard();
    check(cudaEventRecord(event, stream), "mark an arrival");
  }
  // Makes later work on a stream wait for this event.
  void precede(cudaStream_t stream) const {
    const DeviceGuard here = pool->guard();
    check(cudaStreamWaitEvent(stream, event, 0), "wait for the work before");
  }
  bool is_done() const {
    pool->check_process();
    const DeviceGuard here = pool->guard();
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaSuccess) return true;
    (void)cudaGetLastError();  // clears the status, because a pending event is no error
    if (status != cudaErrorNotReady) check(status, "an arrival");
    return false;
  }
  void wait() const {
    if (is_done()) return;
    const DeviceGuard here = pool->guard();
    const store::BlockingWait others;
    check(cudaEventSynchronize(event), "an arrival");
  }
  std::shared_ptr<EventPool> pool;
  cudaEvent_t event;
};

class StreamQueue : public Queue {
 public:
  explicit StreamQueue(int device)
      : pool_(std::make_shared<EventPool>(device)), ring_(std::make_shared<PinnedBlock>(device, kFirstRing)) {}

  ~StreamQueue() override { settle(); }

  void settle() noexcept override {
    try {
      pool_->check_process();
      if (last_) last_->wait();
      sweep();
    } catch (const std::exception&) {  // a device that has failed does not read memory any more
    }
  }

  void begin(void* stream) override {
    if (depth_ > 0) return static_cast<void>(++depth_);
    pool_->check_process();
    sweep();
    now_ = std::make_shared<Event>(pool_);
    stream_ = static_cast<cudaStream_t>(stream);
    if (last_ && stream_ != last_stream_) last_->precede(stream_);
    ++depth_;
  }

  void end() noexcept override {
    if (--depth_ > 0) return;
    try {
      now_->record(stream_);
      last_ = now_;
      last_stream_ = stream_;
      pending_.push_back({now_, std::move(held_), used_});
    } catch (const std::exception&) {  // without an event, waits for the stream before `held_` is released
      pool_->give_up([this] { (void)cudaStreamSynchronize(stream_), (void)cudaGetLastError(); });
    }
    held_.clear();
    now_.reset();
  }

  void follow(void* stream) override {
    if (!last_ || static_cast<cudaStream_t>(stream) == last_stream_) return;
    pool_->check_process();
    last_->precede(static_cast<cudaStream_t>(stream));
  }

  void hold(store::Owner owner) override {
    if (owner) held_.push_back(std::move(owner));
  }

  // The pinned memory is a ring. `used_` is the number of bytes handed out or skipped since the ring was made. The
  // first `free_` of these bytes may be used again. Byte number n lies at n modulo the ring's size.
  char* pinned(size_t bytes) override {
    bytes = (bytes + kApart - 1) / kApart * kApart;
    if (bytes > ring_->bytes / 2) widen(bytes);
    const size_t left = ring_->bytes - used_ % ring_->bytes;
    if (left < bytes) used_ += left;
    while (used_ + bytes - free_ > ring_->bytes) {
      if (pending_.empty()) {  // this arrival uses the whole ring
        widen(bytes);
        break;
      }
      pending_.front().then->wait();
      release();
    }
    char* const room = ring_->at + used_ % ring_->bytes;
    used_ += bytes;
    return room;
  }

  void wait() override {
    const Event event(pool_);
    event.record(stream_);
    event.wait();
  }

 private:
  // Launched work: the event after the work, the owners to release after the event, and `used_` after the work.
  struct FinishedWork {
    std::shared_ptr<Event> then;
    std::vector<store::Owner> held;
    size_t used;
  };

  // Replaces the ring by a larger one. The current arrival keeps the old ring alive until the arrival's work is done.
  // Pending work ends earlier, and uses no byte of the new ring, so `used` of pending work becomes 0.
  void widen(size_t bytes) {
    const size_t room = std::max(4 * bytes, 2 * ring_->bytes);
    hold(std::exchange(ring_, std::make_shared<PinnedBlock>(pool_->device, room)));
    used_ = free_ = 0;
    for (FinishedWork& done : pending_) done.used = 0;
  }
  void release() {
    free_ = std::max(free_, pending_.front().used);
    const FinishedWork done = std::move(pending_.front());
    pending_.pop_front();
  }
  void sweep() {
    while (!pending_.empty() && pending_.front().then->is_done()) release();
  }

  std::shared_ptr<EventPool> pool_;
  std::shared_ptr<PinnedBlock> ring_;
  size_t used_ = 0, free_ = 0;
  std::deque<FinishedWork> pending_;
  std::vector<store::Owner> held_;
  std::shared_ptr<Event> now_, last_;
  cudaStream_t stream_{}, last_stream_{};
  int depth_ = 0;
};

}  // namespace

std::shared_ptr<Queue> queue_on(int device) { return std::make_shared<StreamQueue>(device); }

}  // namespace fastagg::cuda
