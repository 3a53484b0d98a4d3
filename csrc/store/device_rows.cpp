#include "device_rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace fastagg::store {

DeviceRows::DeviceRows(const Setting& setting, std::shared_ptr<Copies> copies, Allocate memory)
    : setting_(setting),
      memory_(std::move(memory)),
      copies_(std::move(copies)),
      of_(static_cast<size_t>(setting.clients), -1) {
  const int64_t stride = setting.windows.stride();
  if (setting.bytes >= 0 && setting.bytes / stride < kLeast)
    throw std::invalid_argument("device: " + std::to_string(setting.bytes) + " bytes hold " +
                                std::to_string(setting.bytes / stride) + " rows of " + std::to_string(stride) +
                                " bytes, and an arrival needs " + std::to_string(kLeast));
  for (int64_t i = 0; i < setting.most; ++i) host_.push_back(copies_->mark());
  for (int64_t i = 0; i < setting.aheads; ++i) aheads_.push_back(copies_->mark());
}

void DeviceRows::start(size_t shadow) {
  if (shadow_ != nullptr) return;
  const Windows& windows = setting_.windows;
  const int64_t staged = setting_.stages * windows.read_bytes();
  const auto sums = static_cast<int64_t>(shadow * sizeof(double));
  // More than an old and a new row of everybody is of no use.
  const int64_t first =
      setting_.bytes < 0 ? kLeast : std::min(setting_.bytes / windows.stride(), 2 * setting_.clients + kLeast);
  Vector scratch = memory_(sums + 2 * staged), rows = memory_for(first);
  if (!scratch || !rows)
    throw SlotsFailed("the device has no memory for " + std::to_string(first) + " rows of " +
                      std::to_string(windows.stride()) + " bytes: give them less (Tiered.device)");
  const auto at = reinterpret_cast<char*>(scratch.data);
  add(std::move(rows), first);
  arenas_.push_back(std::move(scratch));
  nbytes_ += sums + 2 * staged;
  for (const int half : {0, 1}) stages_[half] = {at + sums + half * staged, copies_->mark(), 0};
  shadow_ = reinterpret_cast<double*>(at);
}

int64_t DeviceRows::wanted(int64_t least) const {
  const int64_t most = setting_.bytes < 0 ? setting_.most : frames();
  if (least <= frames() && !(lists_[kFree].empty() && lists_[kIdle].empty())) return 0;
  return std::min(most, std::max(least, 2 * frames())) - frames();
}

void DeviceRows::add(Vector memory, int64_t frames) {
  const auto at = reinterpret_cast<char*>(memory.data);
  copies_->settle();  // somebody else's work may still use this memory
  const int64_t stride = setting_.windows.stride();
  arenas_.push_back(std::move(memory));
  frames_.reserve(frames_.size() + static_cast<size_t>(frames));
  for (int64_t i = 0; i < frames; ++i) {
    Frame one{at + i * stride, copies_->mark()};
    one.node = lists_[kFree].insert(lists_[kFree].end(), static_cast<int32_t>(frames_.size()));
    frames_.push_back(one);
  }
  nbytes_ += frames * stride;
}

void DeviceRows::move(int32_t which, Place to) noexcept {
  Frame& one = frame(which);
  lists_[to].splice(lists_[to].end(), lists_[one.place], one.node);
  one.place = to;
}

void DeviceRows::empty(int32_t which) noexcept {
  Frame& one = frame(which);
  if (one.client >= 0) of_[static_cast<size_t>(one.client)] = -1;
  one.client = -1;
  move(which, kFree);
}

// A frame that can be used for another row.
int32_t DeviceRows::victim(bool also_expected) noexcept {
  for (const Place place : {kFree, kIdle, kExpected}) {
    if (lists_[place].empty() || (place == kExpected && !also_expected)) continue;
    const int32_t found = lists_[place].front();
    empty(found);
    return found;
  }
  return -1;
}

int32_t DeviceRows::held_victim() {
  const int32_t found = victim(true);
  if (found < 0) throw std::logic_error("the device has no frame left for an arrival");
  move(found, kHeld);
  return found;
}

void DeviceRows::fill(int32_t which, int64_t client, const char* from, Mark mark) {
  Frame& one = frame(which);
  copies_->up(one.at, one.mark, from, mark, static_cast<size_t>(setting_.windows.stride()));
  one.client = client;
  of_[static_cast<size_t>(client)] = which;
}

void DeviceRows::expect(int64_t client) noexcept {
  const int32_t which = of_[static_cast<size_t>(client)];
  if (frame(which).place != kHeld) return move(which, kExpected);
  frame(which).back = kExpected;
}

bool DeviceRows::fetch(int64_t client, const char* from, Mark mark) {
  if (has(client)) return expect(client), true;
  const int32_t which = victim(false);
  if (which < 0) return false;
  fill(which, client, from, mark);
  move(which, kExpected);
  return true;
}

void DeviceRows::drop(int64_t client) noexcept {
  if (has(client)) empty(of_[static_cast<size_t>(client)]);
}

Row DeviceRows::hold(int64_t client) {
  const int32_t which = of_[static_cast<size_t>(client)];
  if (Frame& one = frame(which); one.place != kHeld) {
    one.back = one.place;
    move(which, kHeld);
  }
  return row(which);
}

Row DeviceRows::hold(int64_t client, const char* from, Mark mark) {
  const int32_t which = held_victim();
  frame(which).back = kIdle;
  fill(which, client, from, mark);
  return row(which);
}

Row DeviceRows::hold_new() {
  if (fresh_ < 0) fresh_ = held_victim();
  return row(fresh_);
}

Row DeviceRows::stage(const Row& part, int64_t window, Mark mark) {
  Stages& mine = stages_[half_];
  const Windows& windows = setting_.windows;
  const Row there = windows.packed_at(mine.at + mine.used++ * windows.read_bytes());
  copies_->up(there.data, mine.mark, part.data, mark, static_cast<size_t>(windows.data_of(window)));
  if (part.scales != nullptr)
    copies_->up(there.scales, mine.mark, part.scales, mark, static_cast<size_t>(windows.scales_of(window)));
  return there;
}

std::vector<DeviceRows::Mark> DeviceRows::held_marks() const {
  std::vector<Mark> marks;
  for (const int32_t which : lists_[kHeld]) marks.push_back(frames_[static_cast<size_t>(which)].mark);
  if (stages_[half_].used > 0) marks.push_back(stages_[half_].mark);
  return marks;
}

void DeviceRows::begin(Runner& runner) {
  runner.also([this, marks = held_marks()](void* stream) { copies_->before(stream, marks); });
}

void DeviceRows::end(Runner& runner, char* to, Mark mark) {
  const Frame& fresh = frame(fresh_);
  runner.also([this, to, mark, from = fresh.at, there = fresh.mark, marks = held_marks()](void* stream) {
    copies_->after(stream, marks);
    copies_->down(to, mark, from, there, static_cast<size_t>(setting_.windows.stride()));
  });
}

void DeviceRows::commit(int64_t client) noexcept {
  drop(client);  // its row is another now
  Frame& fresh = frame(fresh_);
  fresh.client = client;
  fresh.back = kIdle;
  of_[static_cast<size_t>(client)] = fresh_;
  fresh_ = -1;
  release();
  half_ = 1 - half_;
}

void DeviceRows::release() noexcept {
  if (fresh_ >= 0) move(fresh_, kFree);
  fresh_ = -1;
  while (!lists_[kHeld].empty()) {
    const int32_t which = lists_[kHeld].front();
    move(which, frame(which).back);
  }
  stages_[half_].used = 0;
}

Row DeviceRows::read(int64_t client, int64_t window, char* into) {
  const Windows& windows = setting_.windows;
  const Row from = windows.part(row(of_[static_cast<size_t>(client)]), window), to = windows.packed_at(into);
  copies_->get(to.data, from.data, static_cast<size_t>(windows.data_of(window)));
  if (to.scales != nullptr) copies_->get(to.scales, from.scales, static_cast<size_t>(windows.scales_of(window)));
  return to;
}

}  // namespace fastagg::store
