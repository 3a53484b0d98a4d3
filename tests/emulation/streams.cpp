// Streams and events. A stream that was made does its work, kernels and copies, at once, or only when somebody must
// wait for it: which of the two is random, because no result may depend on it. What is asked of the stream 0 is done at
// once.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <set>

#include "../../csrc/store/process.h"
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

// A child that was forked behind the first use has no device: its library would fail, or never answer.
struct Lock {
  Lock() {
    if (is_forked()) fprintf(stderr, "emulation: CUDA in a forked process\n"), abort();
    mutex().lock();
  }
  ~Lock() { mutex().unlock(); }
  static bool is_forked() {
    static const int first = fastagg::store::process();
    return fastagg::store::process() != first;
  }
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex made;
    return made;
  }
};

std::set<const void*> loaded;

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
  const Lock lock;
  if (stream == nullptr) return act(), cudaSuccess;
  stream->left.push_back(std::move(act));
  ++stream->given;
  if (at_once()) run(stream, stream->given);
  return cudaSuccess;
}

}  // namespace

Counts counts;
thread_local Stream* current = nullptr;
thread_local int device = 1;
std::atomic<bool> empty{false};
std::atomic<int64_t> fails_after{-1};

void check_device() {
  if (device != 0) fprintf(stderr, "emulation: CUDA on a device that nobody asked for\n"), abort();
}

cudaError_t load(const void* kernel) {
  const Lock lock;
  counts.loads += loaded.insert(kernel).second;
  return cudaSuccess;
}

cudaError_t launch(Stream* stream, const void* kernel, std::function<void()> run) {
  load(kernel);
  ++counts.launches;
  if (fails_after >= 0 && fails_after-- == 0) return cudaErrorLaunchFailure;
  return empty ? cudaSuccess : give(stream, std::move(run));
}

cudaError_t make(Event** event) { return *event = new Event, cudaSuccess; }

cudaError_t end(Event* event) { return delete event, cudaSuccess; }

cudaError_t record(Event* event, Stream* stream) {
  ++counts.records;
  const Lock lock;
  *event = stream == nullptr ? Event{} : Event{stream, stream->given};
  return cudaSuccess;
}

cudaError_t wait(Stream* stream, Event* event) {
  ++counts.orders;
  const Lock lock;
  const Event then = *event;
  return give(stream, [then] { run(then.stream, then.count); });
}

// Nothing goes on by itself here, so whoever asks often enough must find it done.
cudaError_t query(Event* event) {
  const Lock lock;
  if (at_once()) run(event->stream, event->count);
  return event->stream == nullptr || event->stream->done >= event->count ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t wait(Event* event) {
  ++counts.waits;
  const Lock lock;
  run(event->stream, event->count);
  return cudaSuccess;
}

cudaError_t settle(Stream* stream) {
  ++counts.waits;
  const Lock lock;
  if (stream != nullptr) run(stream, stream->given);
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
void* new_stream() { return new Stream; }  // events may name it for ever
void settle_stream(void* stream) {
  if (!Lock::is_forked()) settle(static_cast<Stream*>(stream));
}

std::map<std::string, int64_t> take_counts() {
  return {{"launches", counts.launches.exchange(0)}, {"copies", counts.copies.exchange(0)},
          {"memsets", counts.memsets.exchange(0)},   {"records", counts.records.exchange(0)},
          {"orders", counts.orders.exchange(0)},     {"waits", counts.waits.exchange(0)},
          {"loads", counts.loads.exchange(0)}};
}
void unload() {
  const Lock lock;
  loaded.clear();
}
void empty_launches(bool now) { empty = now; }
void fail_launch(int64_t after) { fails_after = after; }

}  // namespace emulation
