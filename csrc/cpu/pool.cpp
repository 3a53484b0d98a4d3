#include "pool.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace fastagg::cpu {
namespace {

struct Job {
  Task task;
  void* context;
  int64_t chunks;
  std::atomic<int64_t> next{0};

  void work() {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < chunks;
         i = next.fetch_add(1, std::memory_order_relaxed))
      task(context, i);
  }
};

class Pool {
 public:
  explicit Pool(int workers) {
#if defined(__linux__)
    if (sched_getaffinity(0, sizeof allowed_, &allowed_) != 0) CPU_ZERO(&allowed_);
#endif
    workers_.reserve(static_cast<size_t>(workers));
    for (int i = 0; i < workers; ++i) workers_.emplace_back([this] { serve(); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int workers() const { return static_cast<int>(workers_.size()); }

  void run(Job& job) {
    keep_off_this_core();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      ++generation_;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;  // a worker that wakes only now finds nothing, and nobody waits for it
    done_.wait(lock, [this] { return active_ == 0; });
  }

 private:
  // A worker that has slept may be woken on the caller's own core and share it for milliseconds, until the scheduler
  // notices that another one idles: half of a step at ten million parameters. So workers stay off the caller's core.
  void keep_off_this_core() {
#if defined(__linux__)
    const int core = sched_getcpu();
    if (core == callers_core_ || core < 0 || core >= CPU_SETSIZE) return;
    callers_core_ = core;
    cpu_set_t others = allowed_;
    CPU_CLR(static_cast<size_t>(core), &others);
    if (CPU_COUNT(&others) == 0) return;
    for (std::thread& worker : workers_) pthread_setaffinity_np(worker.native_handle(), sizeof others, &others);
#endif
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    uint64_t seen = 0;
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || (job_ != nullptr && generation_ != seen); });
      if (stop_) return;
      seen = generation_;
      Job* job = job_;
      ++active_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  uint64_t generation_ = 0;
  int active_ = 0;
  bool stop_ = false;
#if defined(__linux__)
  cpu_set_t allowed_;
  int callers_core_ = -1;
#endif
  std::vector<std::thread> workers_;
};

// Everything a forked child must not inherit half-way: it gets a fresh one, and the parent's threads, which do not
// exist in the child, are left behind with the old.
struct State {
  std::mutex busy;
  Pool* pool = nullptr;
};

std::atomic<int> wanted{1};

std::atomic<State*>& state() {
  static std::atomic<State*> instance{[] {
    pthread_atfork(nullptr, nullptr, [] { state().store(new State); });
    return new State;  // never destroyed: workers may outlive static destructors at exit
  }()};
  return instance;
}

}  // namespace

int threads() { return wanted.load(); }
void set_threads(int count) { wanted.store(count); }

void parallel(int64_t chunks, int64_t bytes, Task task, void* context) {
  Job job{task, context, chunks};
  const int count = wanted.load();
  State& shared = *state().load();
  if (count == 1 || chunks == 1 || bytes < kWorthWaking || !shared.busy.try_lock()) {
    job.work();
    return;
  }
  std::lock_guard<std::mutex> lock(shared.busy, std::adopt_lock);
  if (shared.pool != nullptr && shared.pool->workers() != count - 1) {
    delete shared.pool;
    shared.pool = nullptr;
  }
  if (shared.pool == nullptr) shared.pool = new Pool(count - 1);
  shared.pool->run(job);
}

}  // namespace fastagg::cpu
