#include "lock.h"

#include <chrono>
#include <string>

#include "../refusal.h"
#include "../store/blocking.h"
#include "../store/process.h"

namespace fastagg::engine {
namespace {

constexpr std::chrono::milliseconds kSignals{50};  // how often a waiting caller checks for Ctrl-C

thread_local char here = 0;  // the address of this variable identifies the thread

}  // namespace

Lock::Lock() : process_(store::process()) {}

bool Lock::is_mine() const { return owner_.load(std::memory_order_relaxed) == &here; }

void Lock::enter(bool limited) {
  if (store::process() != process_)
    throw Refusal(Why::kOtherProcess,
                  "this server belongs to the process that made it: save it there and fastagg.load it here");
  if (is_mine())
    throw Refusal(Why::kReentered,
                  "this server is in the middle of a call of this thread, which has called it again from a hook, a "
                  "finalizer or a signal handler; call it when that call has returned");
  if (!mutex_.try_lock()) {
    if (const int64_t now = waiting_; limited && now >= most_waiting)
      throw Refusal(Why::kBusy,
                    std::to_string(now) + " answers are waiting already (max_waiting): send this one later");
    struct WaiterCount {
      explicit WaiterCount(std::atomic<int64_t>& of) : count(of) { ++count; }
      ~WaiterCount() { --count; }
      std::atomic<int64_t>& count;
    } const counted(waiting_);
    store::BlockingWait blocking;
    while (!mutex_.try_lock_for(kSignals)) blocking.check();
  }
  if (retired_) {
    mutex_.unlock();
    throw Refusal(Why::kRetired, "this server has loaded another state");
  }
  owner_.store(&here, std::memory_order_relaxed);
}

void Lock::leave() noexcept {
  owner_.store(nullptr, std::memory_order_relaxed);
  mutex_.unlock();
}

}  // namespace fastagg::engine
