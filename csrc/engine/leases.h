// The limits of tasks: when a task without an answer ends, and how many tasks and clients a server allows.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

#include "ids.h"
#include "open_tasks.h"

namespace fastagg::engine {

struct Limits {
  double lease = std::numeric_limits<double>::infinity();         // the time to answer a task, in seconds
  int64_t max_delay = std::numeric_limits<int64_t>::max();        // the largest age of a task, in versions
  int64_t open_per_client = std::numeric_limits<int64_t>::max();  // the most unanswered tasks of one client
  int64_t clients = std::numeric_limits<int64_t>::max();          // the most clients that are known at a time
  bool expires() const { return lease < std::numeric_limits<double>::infinity() || max_delay < INT64_MAX; }
};

struct Leases {
  // A task that was sent. The task may have ended since.
  struct SentTask {
    double ends;  // when the task's lease ends, in seconds (`time`)
    int64_t version;
    int64_t token;  // the client's token (clients.h); another token at the place: the client was forgotten
    int32_t place;  // the client's place (clients.h); negative: the client was forgotten
  };
  Limits limits;
  double skew = 0.0;  // seconds that are added to the clock, for tests
  // The sent tasks that may become overdue, for each limit. Each list is a heap, with the task in front that is overdue
  // first. A task stays there after its answer. The orders differ, because `hand_on` sends a task of an old version.
  std::vector<SentTask> by_end;      // empty without a lease
  std::vector<SentTask> by_version;  // empty without max_delay
  int64_t expired = 0;               // the number of tasks that ended overdue, or because `expire` was called

  double own_time() const {  // seconds on this process' clock
    return skew + std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  double time() const { return limits.expires() ? own_time() : 0.0; }  // 0 if nothing expires
  Ids::EndReason why_over(int64_t version, int64_t now) const {
    return version < now - limits.max_delay ? Ids::kDelay : Ids::kLease;
  }
  bool is_over(const OpenTask& task, double time, int64_t now) const {
    return task.ends <= time || why_over(task.version, now) == Ids::kDelay;
  }
  // Returns the seconds since the first task in `by_end` was sent or renewed, whether or not the task was answered. 0
  // if `by_end` is empty.
  double oldest() const { return by_end.empty() ? 0.0 : std::max(0.0, time() - (by_end.front().ends - limits.lease)); }
  static bool ends_later(const SentTask& task, const SentTask& other) { return task.ends > other.ends; }
  static bool is_newer(const SentTask& task, const SentTask& other) { return task.version > other.version; }
  // Adds a task to the list of each limit. If memory ends in between, the task stays in one list.
  void add(const SentTask& task) {
    if (limits.lease < std::numeric_limits<double>::infinity()) {
      by_end.push_back(task);
      std::push_heap(by_end.begin(), by_end.end(), ends_later);
    }
    if (limits.max_delay == INT64_MAX) return;
    by_version.push_back(task);
    std::push_heap(by_version.begin(), by_version.end(), is_newer);
  }
  // Moves the first task of `by_end` back. Its lease ends at `ends`.
  void put_off(double ends) noexcept {
    std::pop_heap(by_end.begin(), by_end.end(), ends_later);
    by_end.back().ends = ends;
    std::push_heap(by_end.begin(), by_end.end(), ends_later);
  }
  void remove_first(std::vector<SentTask>& list) noexcept {
    std::pop_heap(list.begin(), list.end(), &list == &by_end ? ends_later : is_newer);
    list.pop_back();
  }
  // Returns the list whose first task is overdue, or nullptr.
  std::vector<SentTask>* overdue(double time, int64_t now) {
    if (!by_version.empty() && why_over(by_version.front().version, now) == Ids::kDelay) return &by_version;
    return !by_end.empty() && by_end.front().ends <= time ? &by_end : nullptr;
  }
};

}  // namespace fastagg::engine
