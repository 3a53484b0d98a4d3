// Threads that train clients ahead of time. If no thread has begun a task, the caller that waits for it trains it
// itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "table.h"

namespace fastagg::train {

// One client's training. The memory in `call` must live until `Crew::finish` or `Crew::drop` has returned.
struct CrewTask {
  LayerTable* table;
  TrainCall call;
  enum { kWaiting, kRunning, kDone } state = kWaiting;
  std::exception_ptr failed = nullptr;
};

class Crew {
 public:
  // Makes a crew. In a forked child a crew is neither used nor destroyed, because the child has none of its threads.
  static std::shared_ptr<Crew> make(int64_t threads);
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew();

  void add(CrewTask& task);
  // Returns when the task is done. Throws the task's exception.
  void finish(CrewTask& task);
  // Cancels a task. Returns when no thread works on it.
  void drop(CrewTask& task);

 private:
  explicit Crew(int64_t threads);
  bool is_here() const;
  void work();
  // Runs the task without the lock. Then locks the lock again.
  void run(CrewTask& task, std::unique_lock<std::mutex>& lock);
  bool take(CrewTask& task);  // removes the task from the waiting tasks; false: the task was not waiting

  const int64_t process_;
  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::deque<CrewTask*> waiting_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fastagg::train
