// Stores the open tasks of each client, and the versions that open tasks need. A client is identified by its place
// (clients.h). A place takes 8 bytes. An open task takes 40 bytes.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../store/vector.h"

namespace fastagg::engine {

struct OpenTask {
  int64_t version, id;
  int32_t local_steps;
  int32_t next;  // the index of the client's next open task; negative: none
  double ends;   // when the task's lease ends, in seconds (Leases::time)
  int64_t last;  // only for a client's first open task: the version that the client was sent last
};

class OpenTasks {
 public:
  static constexpr int64_t kUnknown = -1;  // as a record: the place has no client that was sent a model

  explicit OpenTasks(int64_t places) : records_(static_cast<size_t>(places), kUnknown) {}

  // Calls `act` with each open task of the client at `place`, beginning with the newest. `act` may close that task.
  template <typename Act>
  void each(int64_t place, Act act) const {
    for (int32_t at = first(place); at >= 0;) {
      const OpenTask& open_task = tasks_[static_cast<size_t>(at)];
      at = open_task.next;
      act(open_task);
    }
  }
  const OpenTask* find(int64_t place, int64_t version) const {
    int32_t at = first(place);
    while (at >= 0 && tasks_[static_cast<size_t>(at)].version != version) at = tasks_[static_cast<size_t>(at)].next;
    return at < 0 ? nullptr : &tasks_[static_cast<size_t>(at)];
  }
  void renew(double ends) {
    for (OpenTask& open_task : tasks_) open_task.ends = ends;
  }

  // Returns the version that the client was sent last. Negative: the client is not known.
  int64_t last_sent(int64_t place) const {
    const int32_t task = first(place);
    return task < 0 ? records_[static_cast<size_t>(place)] : tasks_[static_cast<size_t>(task)].last;
  }
  bool is_known(int64_t place) const { return last_sent(place) >= 0; }
  void sent(int64_t place, int64_t version) noexcept { set(place, first(place), version); }

  void reserve() {  // makes room for one more task, so that `open` cannot fail
    if (free_ >= 0) return;
    tasks_.push_back({0, 0, 0, -1, 0.0, 0});
    free_ = static_cast<int32_t>(tasks_.size()) - 1;
  }
  void open(int64_t place, int64_t version, int64_t id, int32_t local_steps, double ends) noexcept {
    const int32_t at = free_;
    OpenTask& task = tasks_[static_cast<size_t>(at)];
    free_ = task.next;
    const int64_t last = last_sent(place);
    task = {version, id, local_steps, first(place), ends, last};
    set(place, at, last);
    ++count_;
  }
  // Ends the client's task of this version. Returns the task's id, or 0 if there is no such task.
  int64_t close(int64_t place, int64_t version) noexcept {
    int32_t before = -1, at = first(place);
    while (at >= 0 && tasks_[static_cast<size_t>(at)].version != version)
      before = at, at = tasks_[static_cast<size_t>(at)].next;
    if (at < 0) return 0;
    OpenTask& task = tasks_[static_cast<size_t>(at)];
    if (before >= 0) {
      tasks_[static_cast<size_t>(before)].next = task.next;
    } else {
      set(place, task.next, task.last);
    }
    task.next = free_;
    free_ = at;
    --count_;
    return task.id;
  }

  int64_t places() const { return static_cast<int64_t>(records_.size()); }
  void reserve_place() {
    if (records_.capacity() == records_.size()) records_.reserve(2 * records_.size() + 16);
  }
  void add_place() noexcept { records_.push_back(kUnknown); }
  void drop(int64_t place) noexcept {
    records_[static_cast<size_t>(place)] = kUnknown;
  }  // the client must have no open task
  int64_t record(int64_t place) const { return records_[static_cast<size_t>(place)]; }
  void swap_places(std::vector<int64_t>& records) noexcept { records_.swap(records); }

  int64_t count() const { return count_; }
  size_t nbytes() const { return records_.size() * sizeof(int64_t) + tasks_.size() * sizeof(OpenTask); }

 private:
  int32_t first(int64_t place) const {  // returns the index of the client's first open task; negative: none
    const int64_t record = records_[static_cast<size_t>(place)];
    return record < kUnknown ? static_cast<int32_t>(-2 - record) : -1;
  }
  void set(int64_t place, int32_t first, int64_t last) noexcept {
    records_[static_cast<size_t>(place)] = first < 0 ? last : -2 - static_cast<int64_t>(first);
    if (first >= 0) tasks_[static_cast<size_t>(first)].last = last;
  }

  // By place. Without open tasks: the version that the client was sent last, or kUnknown. With open tasks: -2 minus the
  // index of the client's first open task in `tasks_`.
  std::vector<int64_t> records_;
  std::vector<OpenTask> tasks_;
  int32_t free_ = -1;
  int64_t count_ = 0;
};

// Keeps the data of each version that has an open task. If `needed` is false, keeps nothing.
class KeptVersions {
 public:
  explicit KeptVersions(bool needed) : keeps(needed) {}
  const bool keeps;

  void hold(int64_t version, const store::Vector& data) {
    if (!keeps) return;
    KeptVersion& kept = kept_[version];
    if (kept.count == 0) kept.data = data;
    ++kept.count;
  }
  void release(int64_t version) noexcept {
    const auto entry = kept_.find(version);
    if (entry != kept_.end() && --entry->second.count == 0) kept_.erase(entry);
  }
  store::Vector of(int64_t version) const {  // returns an empty vector if the version is not kept
    const auto entry = kept_.find(version);
    return entry == kept_.end() ? store::Vector{} : entry->second.data;
  }
  std::vector<std::pair<int64_t, store::Vector>> all() const {
    std::vector<std::pair<int64_t, store::Vector>> versions;
    for (const auto& [version, kept] : kept_) versions.emplace_back(version, kept.data);
    return versions;
  }

 private:
  struct KeptVersion {
    int64_t count = 0;
    store::Vector data;
  };
  std::unordered_map<int64_t, KeptVersion> kept_;
};

}  // namespace fastagg::engine
