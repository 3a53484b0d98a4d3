// A Crew is a group of threads that train the simulator's clients before the clients' updates are needed. If no thread
// has begun a client's task when the update is needed, the caller of `finish` trains the client itself.
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

// One client's training. After `Crew::add`, the task and all memory to which `call` points must live until
// `Crew::finish` or `Crew::drop` has returned.
struct CrewTask {
  LayerTable* table;
  TrainCall call;
  enum { kWaiting, kRunning, kDone } state = kWaiting;
  std::exception_ptr failed = nullptr;
};

class Crew {
 public:
  // Makes a crew of `threads` threads, or fewer if the system allows no more. A forked child process has none of these
  // threads. There `finish` throws Refusal, and the crew is never destroyed.
  static std::shared_ptr<Crew> make(int64_t threads);
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew();

  void add(CrewTask& task);
  // Waits until the task is done, or runs the task if no thread has begun it. Throws the exception of the training.
  void finish(CrewTask& task);
  // Cancels a task. If a thread has begun the task, waits until the task is done.
  void drop(CrewTask& task);

 private:
  explicit Crew(int64_t threads);
  bool is_here() const;
  void work();
  // Must be called with the lock. Runs the task without the lock, and takes the lock again.
  void run(CrewTask& task, std::unique_lock<std::mutex>& lock);
  bool take(CrewTask& task);  // removes the task from `waiting_`; returns false if `waiting_` does not have the task

  const int64_t process_;
  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::deque<CrewTask*> waiting_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fastagg::train
