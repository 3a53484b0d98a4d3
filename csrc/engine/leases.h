// When unanswered tasks end, and how many tasks and clients a server allows.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>

#include "ids.h"
#include "open_tasks.h"

namespace fastagg::engine {

struct Limits {
  double lease = std::numeric_limits<double>::infinity();         // the most seconds that a task may take
  int64_t max_delay = std::numeric_limits<int64_t>::max();        // the most versions that a task may be old
  int64_t open_per_client = std::numeric_limits<int64_t>::max();  // the most unanswered tasks of one client
  int64_t clients = std::numeric_limits<int64_t>::max();          // the most clients known at a time
  bool expires() const { return lease < std::numeric_limits<double>::infinity() || max_delay < INT64_MAX; }
};

struct Leases {
  // A task that was sent. The task may have ended since.
  struct SentTask {
    double ends;
    int64_t version;
    int64_t token;  // the place's token (clients.h); if it differs now, the client was forgotten
    int32_t place;  // negative: the client was forgotten
  };
  Limits limits;
  double skew = 0.0;         // seconds by which this clock is ahead, for tests
  std::deque<SentTask> due;  // in the order of sending; empty if nothing expires
  int64_t expired = 0;       // number of tasks that have expired

  double own_time() const {  // seconds, by this process' clock
    return skew + std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  double time() const { return limits.expires() ? own_time() : 0.0; }  // without limits the time is not used
  Ids::EndReason why_over(int64_t version, int64_t now) const {
    return version < now - limits.max_delay ? Ids::kDelay : Ids::kLease;
  }
  bool is_over(const OpenTask& task, double time, int64_t now) const {
    return task.ends <= time || why_over(task.version, now) == Ids::kDelay;
  }
  // The seconds since the oldest task with a lease was sent, answered or not. 0 if there is none.
  double oldest() const { return due.empty() ? 0.0 : std::max(0.0, time() - (due.front().ends - limits.lease)); }
};

}  // namespace fastagg::engine
