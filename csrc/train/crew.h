// Threads that train clients before their updates are needed. When an update is needed and no thread has begun the
// client's task, the caller trains the client itself.
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
  // Makes a crew. A forked child process has none of the crew's threads, so it neither uses nor destroys the crew.
  static std::shared_ptr<Crew> make(int64_t threads);
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew();

  void add(CrewTask& task);
  // Waits until the task is done. Throws the exception of its training.
  void finish(CrewTask& task);
  // Cancels a task, or waits until a thread that has begun the task is done.
  void drop(CrewTask& task);

 private:
  explicit Crew(int64_t threads);
  bool is_here() const;
  void work();
  // Must be called with the lock. Runs the task without the lock, and takes the lock again.
  void run(CrewTask& task, std::unique_lock<std::mutex>& lock);
  bool take(CrewTask& task);  // removes the task from `waiting_`; returns false if the task is not there

  const int64_t process_;
  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::deque<CrewTask*> waiting_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fastagg::train
