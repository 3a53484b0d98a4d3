// Streams and events, for what a program asks for beside its kernels. A stream that was made does its work at once, or
// only when somebody must wait for it: which of the two is random, because no result may depend on it. Kernels and what
// is asked of the stream 0 are always done at once.
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"

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

void give(Stream* stream, std::function<void()> act) {
  const Lock lock(mutex);
  if (stream == nullptr) return act();
  stream->left.push_back(std::move(act));
  ++stream->given;
  if (at_once()) run(stream, stream->given);
}

}  // namespace

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
  const Lock lock(mutex);
  *event = stream == nullptr ? Event{} : Event{stream, stream->given};
  return cudaSuccess;
}

cudaError_t wait(Stream* stream, Event* event) {
  const Lock lock(mutex);
  const Event then = *event;
  give(stream, [then] { run(then.stream, then.count); });
  return cudaSuccess;
}

cudaError_t wait(Event* event) {
  const Lock lock(mutex);
  run(event->stream, event->count);
  return cudaSuccess;
}

cudaError_t wait_for_all() {
  const Lock lock(mutex);
  for (size_t i = 0; i < streams.size(); ++i) run(streams[i], streams[i]->given);
  return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, size_t bytes, Stream* stream) {
  give(stream, [=] { memcpy(to, from, bytes); });
  return cudaSuccess;
}

}  // namespace emulation
