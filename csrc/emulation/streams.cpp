// Streams and events. A stream that was made does its work, kernels and copies, at once, or only when somebody must
// wait for it: which of the two is random, because no result may depend on it. What is asked of the stream 0 is done at
// once.
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"
#include "testing.h"

namespace emulation {

struct Stream {
  std::deque<std::function<void()>> left;
  uint64_t given = 0, done = 0;
};

struct Event {
  Stream* stream = nullptr;  // null: it has happened
  uint64_t count = 0;
};

namespace {

std::recursive_mutex mutex;
std::vector<Stream*> streams;
typedef std::lock_guard<std::recursive_mutex> Lock;

void run(Stream* stream, uint64_t count) {
  while (stream != nullptr && stream->done < count) {
    const std::function<void()> next = std::move(stream->left.front());
    stream->left.pop_front();
    ++stream->done;
    next();
  }
}

bool at_once() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33 & 1) != 0;
}

cudaError_t give(Stream* stream, std::function<void()> act) {
  const Lock lock(mutex);
  if (stream == nullptr) return act(), cudaSuccess;
  stream->left.push_back(std::move(act));
  ++stream->given;
  if (at_once()) run(stream, stream->given);
  return cudaSuccess;
}

}  // namespace

Counts counts;
thread_local Stream* current = nullptr;
std::atomic<bool> empty{false};
std::atomic<int64_t> fails_after{-1};

cudaError_t launch(Stream* stream, std::function<void()> kernel) {
  ++counts.launches;
  if (fails_after >= 0 && fails_after-- == 0) return cudaErrorLaunchFailure;
  return empty ? cudaSuccess : give(stream, std::move(kernel));
}

cudaError_t make(Stream** stream) {
  const Lock lock(mutex);
  streams.push_back(*stream = new Stream);
  return cudaSuccess;
}

cudaError_t make(Event** event) { return *event = new Event, cudaSuccess; }

// Events may still name the stream: what they wait for is done.
cudaError_t end(Stream* stream) {
  const Lock lock(mutex);
  run(stream, stream->given);
  return cudaSuccess;
}

cudaError_t end(Event* event) { return delete event, cudaSuccess; }

cudaError_t record(Event* event, Stream* stream) {
  ++counts.records;
  const Lock lock(mutex);
  *event = stream == nullptr ? Event{} : Event{stream, stream->given};
  return cudaSuccess;
}

cudaError_t wait(Stream* stream, Event* event) {
  ++counts.orders;
  const Lock lock(mutex);
  const Event then = *event;
  return give(stream, [then] { run(then.stream, then.count); });
}

// Nothing goes on by itself here, so whoever asks often enough must find it done.
cudaError_t query(Event* event) {
  const Lock lock(mutex);
  if (at_once()) run(event->stream, event->count);
  return event->stream == nullptr || event->stream->done >= event->count ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t wait(Event* event) {
  ++counts.waits;
  const Lock lock(mutex);
  run(event->stream, event->count);
  return cudaSuccess;
}

cudaError_t settle(Stream* stream) {
  ++counts.waits;
  const Lock lock(mutex);
  if (stream != nullptr) run(stream, stream->given);
  return cudaSuccess;
}

cudaError_t wait_for_all() {
  ++counts.waits;
  const Lock lock(mutex);
  for (size_t i = 0; i < streams.size(); ++i) run(streams[i], streams[i]->given);
  return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, size_t bytes, Stream* stream) {
  ++counts.copies;
  return give(stream, [=] { memcpy(to, from, bytes); });
}

cudaError_t set(void* to, int value, size_t bytes, Stream* stream) {
  ++counts.memsets;
  return give(stream, [=] { memset(to, value, bytes); });
}

void* current_stream() { return current; }
void use_stream(void* stream) { current = static_cast<Stream*>(stream); }
void* new_stream() {
  Stream* made = nullptr;
  return make(&made), made;
}
void settle_stream(void* stream) { settle(static_cast<Stream*>(stream)); }

std::map<std::string, int64_t> take_counts() {
  return {{"launches", counts.launches.exchange(0)}, {"copies", counts.copies.exchange(0)},
          {"memsets", counts.memsets.exchange(0)},   {"records", counts.records.exchange(0)},
          {"orders", counts.orders.exchange(0)},     {"waits", counts.waits.exchange(0)}};
}
void empty_launches(bool now) { empty = now; }
void fail_launch(int64_t after) { fails_after = after; }

}  // namespace emulation
