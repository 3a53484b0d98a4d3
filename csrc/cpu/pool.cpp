// The pool of threads (pool.h). It decides when workers spin, sleep, and take chunks of slower threads.
#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "floats.h"
#include "tuning.h"

namespace fastagg::cpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// If a yielding thread gets its core back only after this time, another thread was using the core.
constexpr microseconds kTaken{100};
// How long the caller spins for busy workers after its own work is done.
constexpr microseconds kPatience{40};
// A worker that found its core in use by another thread does not spin for this number of calls.
constexpr int kBackOff = 16;

// If a call touches fewer bytes than this, the data may still be in the caches of the threads that used it last. Then a
// thread takes chunks of another thread only if that thread makes no progress (kStandstill). If cores share no cache
// (in another core complex, or sometimes on a virtual machine), moving a chunk's cache lines in this call and the next
// costs more than the chunk's work.
constexpr int64_t kCached = int64_t{1} << 25;
// Even if the data may be in caches, thread A takes chunks of thread B if B has begun no chunk at all, or none for some
// time: kStandstill plus kSlower times the duration of one of A's chunks.
constexpr microseconds kStandstill{20};
constexpr int kSlower = 10;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Spins until done(), but at most for `limit`. Stops and sets `taken` if another thread uses this core. Returns done().
template <typename Done>
bool spin_until(Done done, microseconds limit, bool* taken) {
  const auto start = Clock::now();
  for (auto now = start; now - start < limit;) {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
    sched_yield();  // gives the core to a waiting thread now, instead of at the end of the time slice
    const auto after = Clock::now();
    if (after - now > kTaken) {
      *taken = true;
      return done();
    }
    now = after;
  }
  return false;
}

// One thread's share of the chunks, on its own cache line.
struct alignas(64) Share {
  std::atomic<int64_t> next{0};
  int64_t begin = 0, end = 0;

  int64_t left() const { return end - next.load(std::memory_order_relaxed); }
};

struct Job {
  Task task;
  void* context;
  std::vector<Share>& shares;
  bool cached;  // whether the chunks' data may be in the caches of the threads that used it last

  void work(size_t own) {
    const size_t count = shares.size();
    const int64_t begun = shares[own].left();
    const auto start = Clock::now();
    while (take(shares[own])) {
    }
    const auto patience =
        cached ? kStandstill + kSlower * (Clock::now() - start) / std::max<int64_t>(begun, 1) : Clock::duration{0};
    for (size_t s = 1; s < count; ++s) help(shares[(own + s) % count], patience);
  }

 private:
  bool take(Share& share) {
    if (share.left() <= 0) return false;
    const int64_t chunk = share.next.fetch_add(1, std::memory_order_relaxed);
    if (chunk < share.end) task(context, chunk);
    return true;
  }

  // Takes chunks of another thread's share. That thread must have begun no chunk at all, or none for `patience`.
  void help(Share& share, Clock::duration patience) {
    auto moved = Clock::now();
    int64_t seen = share.left();
    bool late = seen == share.end - share.begin;
    for (int64_t left = seen; left > 0; left = share.left()) {
      if (left < seen) {
        late = false;
        moved = Clock::now();
        seen = left;
      }
      if (late || Clock::now() - moved >= patience) {
        take(share);
        --seen;
      } else {
        for (int i = 0; i < 8; ++i) pause();
      }
    }
  }
};

class Pool {
 public:
  explicit Pool(int workers) : shares_(static_cast<size_t>(workers) + 1) {
#if defined(__linux__)
    if (sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) CPU_ZERO(&allowed_);
    crowded_ = CPU_COUNT(&allowed_) <= workers;
#endif
    workers_.reserve(static_cast<size_t>(workers));
    try {
      for (size_t i = 1; i < shares_.size(); ++i) workers_.emplace_back([this, i] { serve(i); });
      // If the system gives no more threads, the existing threads do the missing workers' chunks.
    } catch (const std::exception&) {
    }
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return static_cast<int>(shares_.size()); }  // the requested number, with the caller's thread

  // Returns whether to share the work with the workers. Sharing is faster if all workers are awake or the work is
  // large. Sharing also helps if the last call was recent. Workers that wake now will be awake for the next call.
  bool worth(int64_t bytes) const {
    if (sleeping_.load(std::memory_order_relaxed) == 0 || bytes >= kWorthWaking) return true;
    return Clock::now() - last_ < microseconds{tuning().spin};
  }

  // Stores the time at which a call with work for several threads ended. Also called if the caller worked alone.
  void passed() { last_ = Clock::now(); }

  void run(Task task, void* context, int64_t chunks, int64_t bytes) {
    keep_off_this_core();
    const int64_t count = static_cast<int64_t>(shares_.size());
    for (int64_t s = 0; s < count; ++s) {
      Share& share = shares_[static_cast<size_t>(s)];
      share.begin = chunks * s / count;
      share.end = chunks * (s + 1) / count;
      share.next.store(share.begin, std::memory_order_relaxed);
    }
    Job job{task, context, shares_, bytes < kCached};
    job_.store(&job);
    generation_.fetch_add(1);
    if (sleeping_.load() > 0) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
      }
      wake_.notify_all();
    }
    job.work(0);
    job_.store(nullptr);  // the caller does not wait for a worker that is so late that it finds no job
    wait_for_workers();
    passed();
  }

 private:
  bool idle() const { return active_.load() == 0; }

  void wait_for_workers() {
    bool taken = false;
    if (spin_until([this] { return idle(); }, kPatience, &taken)) return;
    // Another thread seems to use a worker's core. Torch's threads, for example, stay awake for milliseconds after an
    // operation. The caller's core is idle while the caller waits. So let_go() lets workers run on this core.
    let_go();
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_.store(true);
    done_.wait(lock, [this] { return idle(); });
    waiting_.store(false);
  }

  // A sleeping worker may be woken on the caller's core. Worker and caller then share the core for milliseconds, until
  // the scheduler notices that another core is idle. This delay can be half of the time of a step with ten million
  // parameters. So workers stay off the caller's core.
  void keep_off_this_core() {
#if defined(__linux__)
    const int core = sched_getcpu();
    if (core == callers_core_ || core < 0 || core >= CPU_SETSIZE) return;
    cpu_set_t others = allowed_;
    CPU_CLR(static_cast<size_t>(core), &others);
    if (CPU_COUNT(&others) == 0) return;
    callers_core_ = core;
    place_workers(others);
#endif
  }

  void let_go() {
#if defined(__linux__)
    if (callers_core_ < 0) return;
    callers_core_ = -1;
    place_workers(allowed_);
#endif
  }

#if defined(__linux__)
  void place_workers(const cpu_set_t& cores) {
    for (std::thread& worker : workers_) pthread_setaffinity_np(worker.native_handle(), sizeof cores, &cores);
  }
#endif

  void serve(size_t index) {
    const PlainFloats plain;  // a new thread inherits its creator's floating-point modes, which this changes
    uint64_t seen = 0;
    int quiet = 0;  // for this many calls, the worker sleeps without spinning first
    for (;;) {
      wait_for_call(seen, quiet);
      seen = generation_.load();
      active_.fetch_add(1);
      if (Job* job = job_.load()) job->work(index);
      if (active_.fetch_sub(1) == 1 && waiting_.load()) {
        std::lock_guard<std::mutex> lock(mutex_);
        done_.notify_one();
      }
      if (stop_.load()) return;
    }
  }

  void wait_for_call(uint64_t seen, int& quiet) {
    const auto called = [&] { return generation_.load() != seen; };
    const microseconds limit{tuning().spin};
    if (quiet > 0) {
      --quiet;
    } else if (!crowded_ && limit.count() > 0) {
      bool taken = false;
      if (spin_until(called, limit, &taken)) return;
      if (taken) quiet = kBackOff;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, called);
    sleeping_.fetch_sub(1);
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Share> shares_;
  alignas(64) std::atomic<uint64_t> generation_{0};
  std::atomic<Job*> job_{nullptr};
  alignas(64) std::atomic<int> active_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> waiting_{false}, stop_{false};
  Clock::time_point last_{};  // the end of the last call with work for several threads
  bool crowded_ = false;      // whether there are fewer cores than threads; then no worker spins
#if defined(__linux__)
  cpu_set_t allowed_;
  int callers_core_ = -1;
#endif
  std::vector<std::thread> workers_;
};

// The pool and its lock. A forked child gets a new PoolState, because the parent's other threads may be changing the
// old one during the fork. The child cannot use the old pool, whose threads do not exist in the child.
struct PoolState {
  std::mutex busy;
  std::unique_ptr<Pool> pool;
};

std::atomic<int> wanted{1};

std::atomic<PoolState*>& state() {
  static std::atomic<PoolState*> instance{[] {
    pthread_atfork(nullptr, nullptr, [] { state().store(new PoolState); });
    return new PoolState;  // never destroyed: workers may outlive static destructors at exit
  }()};
  return instance;
}

}  // namespace

int threads() { return wanted.load(); }
void set_threads(int count) { wanted.store(count); }

void parallel(int64_t chunks, int64_t bytes, Task task, void* context) {
  const PlainFloats plain;
  const int count = wanted.load();
  PoolState& shared = *state().load();
  if (count == 1 || chunks == 1 || bytes < kWorthSharing || !shared.busy.try_lock()) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) task(context, chunk);
    return;
  }
  std::lock_guard<std::mutex> lock(shared.busy, std::adopt_lock);
  if (shared.pool == nullptr || shared.pool->threads() != count) {
    shared.pool.reset();
    try {
      shared.pool = std::make_unique<Pool>(count - 1);
    } catch (const std::bad_alloc&) {  // the caller works alone, because a step that has begun must not fail
    }
  }
  if (shared.pool != nullptr && shared.pool->worth(bytes)) {
    shared.pool->run(task, context, chunks, bytes);
    return;
  }
  for (int64_t chunk = 0; chunk < chunks; ++chunk) task(context, chunk);
  if (shared.pool != nullptr) shared.pool->passed();
}

}  // namespace fastagg::cpu
