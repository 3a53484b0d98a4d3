// The ids of tasks, and the outcomes of the last tasks that ended. An id is a number of 63 bits, at least 1. A life of
// a server lasts from one start or load to the next. In each life, ids begin at a random number of 62 bits, and count
// up. So two lives with n tasks together share an id with a probability of n / 2^62, which is 2e-9 for 10^10 tasks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace fastagg::engine {

class Ids {
 public:
  // The number of ended tasks whose outcomes are remembered.
  static constexpr size_t kRemembered = 16384;
  // The number of lives whose ids are recognised as ids of this server.
  static constexpr size_t kLives = 1024;

  // How a task ended. If an answer counted, `packed` is at least 0, and has the server's version after the answer and
  // whether the answer changed the model. Otherwise `packed` is negative, and has the task's version and the reason. A
  // checkpoint stores neither client nor age, and stores -1 for every negative `packed`.
  enum EndReason { kUnknown, kGivenUp, kLease, kDelay };
  struct EndedTask {
    int64_t id = 0;
    int64_t packed = kUncounted;
    uint32_t client = 0;  // the client's mark (Clients::mark); 0: unknown
    uint32_t age = 0;     // for a counted answer: version() minus the task's version
    bool counted() const { return packed >= 0; }
    int64_t version() const { return packed >> 1; }
    bool applied() const { return (packed & 1) != 0; }
    int64_t sent() const { return counted() ? version() - age : (-1 - packed) >> 2; }
    EndReason why() const { return static_cast<EndReason>((-1 - packed) & 3); }
  };
  static constexpr int64_t kUncounted = -1;  // as `packed`: the task ended without an answer, for an unknown reason
  static int64_t pack(int64_t version, bool applied) { return version << 1 | static_cast<int64_t>(applied); }
  static int64_t unanswered(int64_t version, EndReason why) { return -1 - (version << 2 | why); }

  // Begins a life. The first id follows from `number`. If an earlier life began with this number, that life continues.
  void begin(uint64_t number) {
    const auto first = static_cast<int64_t>(number >> 1 & kBegins) + 1;
    lives_.reserve(lives_.size() + 1);
    if (!lives_.empty() && lives_.back().first == lives_.back().next) lives_.pop_back();
    const auto same = std::find_if(lives_.begin(), lives_.end(), [&](const Life& life) { return life.first == first; });
    if (same != lives_.end()) {
      std::rotate(same, same + 1, lives_.end());
    } else {
      lives_.push_back({first, first});
    }
    if (lives_.size() > kLives) lives_.erase(lives_.begin());
  }

  int64_t next() const { return lives_.empty() ? 1 : lives_.back().next; }
  // Makes room for one more id, and for the outcomes of `open` + 1 open tasks, so that `use` and `end` do not allocate.
  void reserve(size_t open) {
    lives_.reserve(lives_.size() + 1);
    const size_t needed = std::min(kRemembered, ended_.size() + open + 1);
    if (ended_.capacity() < needed) ended_.reserve(std::min(kRemembered, 2 * needed));
  }
  // Marks an id as used. An id from a log may come after a gap, because a part of the log may be lost.
  void use(int64_t id) noexcept {
    for (size_t i = lives_.size(); i-- > 0;)
      if (id >= lives_[i].first && id - lives_[i].next < kGap) {
        lives_[i].next = std::max(lives_[i].next, id + 1);
        return;
      }
    lives_.push_back({id, id + 1});
  }
  // Whether this server may have given this id to a task.
  bool knows(int64_t id) const {
    return std::any_of(lives_.begin(), lives_.end(),
                       [&](const Life& life) { return id >= life.first && id < life.next; });
  }

  void end(const EndedTask& task) noexcept {
    if (ended_.size() < kRemembered) {
      ended_.push_back(task);
    } else {
      ended_[oldest_] = task;
      oldest_ = (oldest_ + 1) % kRemembered;
    }
  }
  // Returns how a task ended. Null: no outcome of the task is remembered.
  const EndedTask* ended(int64_t id) const {
    const auto entry = std::find_if(ended_.begin(), ended_.end(), [&](const EndedTask& task) { return task.id == id; });
    return entry == ended_.end() ? nullptr : &*entry;
  }
  // Returns how a client's last task of `version` ended (empty: of any version). Null: no outcome is remembered.
  const EndedTask* last(uint32_t client, std::optional<int64_t> version) const {
    for (size_t i = ended_.size(); i-- > 0;) {
      const EndedTask& task = ended_[(oldest_ + i) % ended_.size()];
      if (task.client == client && (!version || task.sent() == *version)) return &task;
    }
    return nullptr;
  }
  size_t nbytes() const { return ended_.size() * sizeof(EndedTask); }

  // The state as numbers: the first and the next id of each life, then the ids and outcomes of tasks, oldest first.
  struct State {
    std::vector<int64_t> firsts, nexts, ended, outcomes;
  };
  State state() const {
    State state;
    for (const Life& life : lives_) state.firsts.push_back(life.first), state.nexts.push_back(life.next);
    for (size_t i = 0; i < ended_.size(); ++i) {
      const EndedTask& task = ended_[(oldest_ + i) % ended_.size()];
      state.ended.push_back(task.id), state.outcomes.push_back(std::max(task.packed, kUncounted));
    }
    return state;
  }
  // Loads a state. Returns false if the state is not valid.
  bool load(const State& state) {
    if (state.firsts.size() != state.nexts.size() || state.ended.size() != state.outcomes.size()) return false;
    lives_.clear(), ended_.clear(), oldest_ = 0;
    for (size_t i = 0; i < state.firsts.size(); ++i) {
      if (state.firsts[i] < 1 || state.nexts[i] < state.firsts[i]) return false;
      lives_.push_back({state.firsts[i], state.nexts[i]});
    }
    const size_t count = std::min(kRemembered, state.ended.size()), skipped = state.ended.size() - count;
    for (size_t i = 0; i < count; ++i) ended_.push_back({state.ended[skipped + i], state.outcomes[skipped + i], 0});
    return true;
  }

 private:
  static constexpr uint64_t kBegins = (uint64_t{1} << 62) - 1;
  static constexpr int64_t kGap = int64_t{1} << 40;  // more ids than a lost part of a log can contain
  struct Life {
    int64_t first, next;
  };
  std::vector<Life> lives_;
  std::vector<EndedTask> ended_;  // a ring buffer once it has kRemembered entries
  size_t oldest_ = 0;
};

}  // namespace fastagg::engine
