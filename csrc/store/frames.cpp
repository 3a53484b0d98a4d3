#include "frames.h"

namespace fastagg::store {

Frames::Frames(const Windows& windows, int64_t clients, int64_t count, int64_t aheads)
    : windows_(windows),
      stride_(windows.stride()),
      frames_(static_cast<size_t>(count)),
      frame_of_(static_cast<size_t>(clients), -1),
      ahead_(static_cast<size_t>(aheads)) {
  free_.reserve(frames_.size());
  for (int64_t frame = count; frame-- > 0;) free_.push_back(static_cast<int32_t>(frame));
}

void Frames::map() {
  if (arena_.data() == nullptr) arena_ = Mapped(count() * stride_);
  if (ahead_arena_.data() == nullptr) ahead_arena_ = Mapped(aheads() * windows_.read_bytes());
}

int64_t Frames::nbytes() const {
  const auto used = static_cast<int64_t>(frames_.size() - free_.size());
  const size_t index = frame_of_.size() * sizeof(int32_t) + frames_.size() * sizeof(Frame);
  return used * stride_ + aheads() * windows_.read_bytes() + static_cast<int64_t>(index);
}

void Frames::link(int64_t frame) {
  Frame& one = (*this)[frame];
  List& list = one.expected ? expected_ : idle_;
  one.before = list.last, one.after = -1;
  (list.last < 0 ? list.first : (*this)[list.last].after) = static_cast<int32_t>(frame);
  list.last = static_cast<int32_t>(frame);
}

void Frames::unlink(int64_t frame) {
  Frame& one = (*this)[frame];
  List& list = one.expected ? expected_ : idle_;
  (one.before < 0 ? list.first : (*this)[one.before].after) = one.after;
  (one.after < 0 ? list.last : (*this)[one.after].before) = one.before;
  one.before = one.after = -1;
}

int64_t Frames::with(int64_t client) const {
  const int32_t frame = frame_of_[static_cast<size_t>(client)];
  return frame >= 0 && frames_[static_cast<size_t>(frame)].state != kReading ? frame : -1;
}

int64_t Frames::take(bool also_expected) {
  if (!free_.empty()) {
    const int32_t frame = free_.back();
    free_.pop_back();
    return frame;
  }
  const int32_t frame = idle_.first >= 0 ? idle_.first : also_expected ? expected_.first : -1;
  if (frame < 0) return -1;
  unlink(frame);
  of((*this)[frame].client) = -1;
  (*this)[frame] = Frame{};
  return frame;
}

void Frames::release(int64_t frame) {
  (*this)[frame] = Frame{};
  free_.push_back(static_cast<int32_t>(frame));  // it has room for all
}

void Frames::clean(int64_t frame) {
  (*this)[frame].state = kClean;
  link(frame);
}

void Frames::drop(int64_t frame) {
  unlink(frame);
  release(frame);
}

void Frames::expect(int64_t frame, bool is) noexcept {
  Frame& one = (*this)[frame];
  const bool linked = one.state == kClean;
  if (linked) unlink(frame);
  one.expected = is;
  if (linked) link(frame);
}

void Frames::pin(int64_t frame) {
  Frame& one = (*this)[frame];
  one.pinned = true;
  if (one.state != kClean) return;  // it is being written
  unlink(frame);
  one.state = kPlanned;
}

void Frames::unpin(int64_t frame) {
  Frame& one = (*this)[frame];
  one.pinned = false;
  if (one.state == kPlanned) clean(frame);
}

}  // namespace fastagg::store
