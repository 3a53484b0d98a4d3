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

// A forked child has no device. What its parent's server leaves there is not touched: the device's library, and locks
// that other threads held, may never answer.
struct Own {
  const int process = store::process();
  bool forked() const { return store::process() != process; }
  void check_process() const {
    if (forked())
      throw Error("CUDA: this process was forked from the one that its server belongs to: start it by spawning");
  }
};

// Pinned memory.
struct Block : Own {
  explicit Block(size_t size) : bytes(size) {
    void* made = nullptr;
    check(cudaHostAlloc(&made, size, cudaHostAllocPortable | cudaHostAllocMapped), "pinned memory");
    at = static_cast<char*>(made);
  }
  ~Block() {
    if (!forked()) (void)cudaFreeHost(at);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  char* at;
  size_t bytes;
};

// Events, for use again.
class Pool : public Own {
 public:
  explicit Pool(int device_) : device(device_) {}
  ~Pool() {
    if (forked()) return;
    for (const cudaEvent_t each : events_) (void)cudaEventDestroy(each);
  }
  cudaEvent_t event() {
    if (!events_.empty()) {
      const cudaEvent_t found = events_.back();
      events_.pop_back();
      return found;
    }
    cudaEvent_t made{};
    check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "an event");
    return made;
  }
  void give_back(cudaEvent_t event) noexcept {
    if (forked()) return;
    try {
      events_.push_back(event);
    } catch (const std::bad_alloc&) {
      (void)cudaEventDestroy(event);
    }
  }
  const int device;

 private:
  std::vector<cudaEvent_t> events_;
};

struct Event {
  explicit Event(std::shared_ptr<Pool> of) : pool(std::move(of)), event(pool->event()) {}
  ~Event() { pool->give_back(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  bool is_done() const {
    pool->check_process();
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaSuccess) return true;
    (void)cudaGetLastError();  // clears it: that an event has not happened is no error
    if (status != cudaErrorNotReady) check(status, "an arrival");
    return false;
  }
  void wait() const {
    if (is_done()) return;
    const store::Blocking others;
    check(cudaEventSynchronize(event), "an arrival");
  }
  std::shared_ptr<Pool> pool;
  cudaEvent_t event;
};

class InOrder : public Queue {
 public:
  explicit InOrder(int device) : pool_(std::make_shared<Pool>(device)), ring_(std::make_shared<Block>(kFirstRing)) {}

  ~InOrder() override { settle(); }

  void settle() noexcept override {
    try {
      pool_->check_process();
      const DeviceGuard guard(pool_->device);
      if (last_) last_->wait();
      sweep();
    } catch (const std::exception&) {  // a device that does not work any more reads nothing either
    }
  }

  void begin(void* stream) override {
    if (depth_ > 0) return static_cast<void>(++depth_);
    pool_->check_process();
    const DeviceGuard guard(pool_->device);
    sweep();
    now_ = std::make_shared<Event>(pool_);
    stream_ = static_cast<cudaStream_t>(stream);
    if (last_ && stream_ != last_stream_)
      check(cudaStreamWaitEvent(stream_, last_->event, 0), "wait for the work before");
    ++depth_;
  }

  void end() noexcept override {
    if (--depth_ > 0) return;
    try {
      const DeviceGuard guard(pool_->device);
      check(cudaEventRecord(now_->event, stream_), "mark an arrival");
      last_ = now_;
      last_stream_ = stream_;
      pending_.push_back({now_, std::move(held_), used_});
    } catch (const std::exception&) {  // the device fails, or there is no memory: nothing is given up too early
      (void)cudaStreamSynchronize(stream_);
      (void)cudaGetLastError();
    }
    held_.clear();
    now_.reset();
  }

  void follow(void* stream) override {
    if (!last_ || static_cast<cudaStream_t>(stream) == last_stream_) return;
    pool_->check_process();
    const DeviceGuard guard(pool_->device);
    check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), last_->event, 0), "wait for the server's work");
  }

  void hold(store::Owner owner) override {
    if (owner) held_.push_back(std::move(owner));
  }

  // A ring: `used_` bytes were ever given, and what was given up to `free_` may be used again.
  char* pinned(size_t bytes) override {
    bytes = (bytes + kApart - 1) / kApart * kApart;
    if (bytes > ring_->bytes / 2) widen(bytes);
    const size_t left = ring_->bytes - used_ % ring_->bytes;
    if (left < bytes) used_ += left;
    while (used_ + bytes - free_ > ring_->bytes) {
      if (pending_.empty()) {  // all of it is this arrival's
        widen(bytes);
        break;
      }
      pending_.front().then->wait();
      release();
    }
    char* const found = ring_->at + used_ % ring_->bytes;
    used_ += bytes;
    return found;
  }

  void wait() override {
    const DeviceGuard guard(pool_->device);
    const Event event(pool_);
    check(cudaEventRecord(event.event, stream_), "mark what is waited for");
    event.wait();
  }

 private:
  struct Done {
    std::shared_ptr<Event> then;
    std::vector<store::Owner> held;
    size_t used;
  };

  // Work that is pending ends before the current arrival's, which holds the old ring.
  void widen(size_t bytes) {
    hold(std::exchange(ring_, std::make_shared<Block>(std::max(4 * bytes, 2 * ring_->bytes))));
    used_ = free_ = 0;
    for (Done& one : pending_) one.used = 0;
  }
  void release() {
    free_ = std::max(free_, pending_.front().used);
    const Done done = std::move(pending_.front());
    pending_.pop_front();
  }
  void sweep() {
    while (!pending_.empty() && pending_.front().then->is_done()) release();
  }

  std::shared_ptr<Pool> pool_;
  std::shared_ptr<Block> ring_;
  size_t used_ = 0, free_ = 0;
  std::deque<Done> pending_;
  std::vector<store::Owner> held_;
  std::shared_ptr<Event> now_, last_;
  cudaStream_t stream_{}, last_stream_{};
  int depth_ = 0;
};

}  // namespace

std::shared_ptr<Queue> queue_on(int device) { return std::make_shared<InOrder>(device); }

}  // namespace fastagg::cuda
