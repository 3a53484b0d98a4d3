// A thread for what nobody needs to wait for yet, in order. Without threads a job is done at once.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "process.h"

namespace fastagg::store {

class Behind {
 public:
  Behind() = default;
  Behind(const Behind&) = delete;
  Behind& operator=(const Behind&) = delete;
  ~Behind() {
    wait(UINT64_MAX);
    if (!runs()) return;
    const std::lock_guard<std::mutex> lock(queue_->mutex);
    queue_->ended = true;
    queue_->changed.notify_all();
  }

  // Returns the job's number. A job throws nothing, and is no larger than two pointers: then nothing is allocated.
  uint64_t begin(std::function<void()> job) noexcept {
    if (!runs() && !start()) {
      job();
      return 0;
    }
    std::unique_lock<std::mutex> lock(queue_->mutex);
    queue_->changed.wait(lock, [&] { return queue_->begun - queue_->done < kMost; });
    queue_->jobs[queue_->begun % kMost] = std::move(job);
    queue_->changed.notify_all();
    return ++queue_->begun;
  }
  // Until this job, or all that have begun, are done.
  void wait(uint64_t number) const noexcept {
    if (!runs()) return;
    std::unique_lock<std::mutex> lock(queue_->mutex);
    const uint64_t last = std::min(number, queue_->begun);
    queue_->changed.wait(lock, [&] { return queue_->done >= last; });
  }

 private:
  static constexpr size_t kMost = 64;
  struct Queue {  // the thread's, too
    std::mutex mutex;
    std::condition_variable changed;
    std::array<std::function<void()>, kMost> jobs;
    uint64_t begun = 0, done = 0;
    bool ended = false;
  };
  static void work(Queue& queue) {
    std::unique_lock<std::mutex> lock(queue.mutex);
    for (;;) {
      queue.changed.wait(lock, [&] { return queue.done < queue.begun || queue.ended; });
      if (queue.done == queue.begun) return;
      const std::function<void()> job = std::move(queue.jobs[queue.done % kMost]);
      lock.unlock();
      job();
      lock.lock();
      ++queue.done;
      queue.changed.notify_all();
    }
  }
  // A forked child has not got the thread.
  bool runs() const { return queue_ != nullptr && store::process() == process_; }
  bool start() noexcept {
    try {
      auto queue = std::make_shared<Queue>();
      std::thread([queue] { work(*queue); }).detach();
      queue_ = std::move(queue);
      process_ = store::process();
    } catch (const std::exception&) {  // no memory, or no threads
      return false;
    }
    return true;
  }

  std::shared_ptr<Queue> queue_;
  int process_ = 0;
};

}  // namespace fastagg::store
