#include "crew.h"

#include <unistd.h>

#include <algorithm>

#include "../refusal.h"

namespace fastagg::train {

Crew::Crew(int64_t threads) : process_(getpid()) {
  try {
    for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::exception&) {  // the system allows no more threads; `finish` trains on the calling thread
  }
}

Crew::~Crew() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& each : threads_) each.join();
}

std::shared_ptr<Crew> Crew::make(int64_t threads) {
  return std::shared_ptr<Crew>(new Crew(threads), [](Crew* crew) {
    if (crew->is_here()) delete crew;
  });
}

bool Crew::is_here() const { return getpid() == process_; }

void Crew::add(CrewTask& task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(&task);
  }
  changed_.notify_one();
}

void Crew::finish(CrewTask& task) {
  if (!is_here()) throw Refusal(Why::kSetting, "train: this process was forked from the one whose threads train");
  std::unique_lock<std::mutex> lock(mutex_);
  if (take(task)) run(task, lock);
  done_.wait(lock, [&] { return task.state == CrewTask::kDone; });
  if (task.failed) std::rethrow_exception(task.failed);
}

void Crew::drop(CrewTask& task) {
  if (!is_here()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  take(task);
  done_.wait(lock, [&] { return task.state != CrewTask::kRunning; });
}

bool Crew::take(CrewTask& task) {
  const auto entry = std::find(waiting_.begin(), waiting_.end(), &task);
  if (entry == waiting_.end()) return false;
  waiting_.erase(entry);
  return true;
}

void Crew::run(CrewTask& task, std::unique_lock<std::mutex>& lock) {
  task.state = CrewTask::kRunning;
  lock.unlock();
  try {
    task.table->train(task.call);
  } catch (...) {
    task.failed = std::current_exception();
  }
  lock.lock();
  task.state = CrewTask::kDone;
  done_.notify_all();
}

void Crew::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    CrewTask& next = *waiting_.front();
    waiting_.pop_front();
    run(next, lock);
  }
}

}  // namespace fastagg::train
