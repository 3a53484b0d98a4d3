// Which rows are in memory. A frame is memory for one row. There is a little more memory for windows of rows that the
// scrub reads ahead. Whoever calls this has the mutex of the transfers (transfers.h).
#pragma once

#include <cstdint>
#include <vector>

#include "mapped.h"
#include "windows.h"

namespace fastagg::store {

class Frames {
 public:
  enum State : uint8_t { kFree, kReading, kClean, kWriting, kPlanned };
  struct Frame {
    int64_t client = -1;
    int32_t before = -1, after = -1;  // in the list that it is in
    State state = kFree;
    bool expected = false;  // its client was sent a model
    bool pinned = false;    // the arrival that is planned reads it
    bool orphan = false;    // its client has a newer row: free when it is written
  };
  struct Ahead {  // a window of a row, read ahead for the scrub
    int64_t turn = -1, slot = -1;
    State state = kFree;
  };

  Frames(const Windows& windows, int64_t clients, int64_t count, int64_t aheads);

  // Allocates. A second call does nothing.
  void map();

  Frame& operator[](int64_t frame) { return frames_[static_cast<size_t>(frame)]; }
  int64_t count() const { return static_cast<int64_t>(frames_.size()); }
  int64_t nbytes() const;
  char* at(int64_t frame) const { return arena_.data() + frame * stride_; }
  Row row_in(int64_t frame) const { return frame < 0 ? Row{} : windows_.row_at(at(frame)); }

  // The frame that is the client's, though its row may still be on its way. Negative: none.
  int32_t& of(int64_t client) { return frame_of_[static_cast<size_t>(client)]; }
  // The frame that has the client's row; negative: none has, or it is being read.
  int64_t with(int64_t client) const;
  // A frame that can be used for another row: free, or the one of a clean row that was used longest ago. Negative:
  // there is none.
  int64_t take(bool also_expected);
  void release(int64_t frame);
  // The frame's row is as the file has it: another row may take its place.
  void clean(int64_t frame);
  // The clean row of this frame is not needed any more.
  void drop(int64_t frame);
  // Whether the frame's row is one that somebody waits for.
  void expect(int64_t frame, bool is) noexcept;
  // No other row takes this frame.
  void pin(int64_t frame);
  void unpin(int64_t frame);

  int64_t aheads() const { return static_cast<int64_t>(ahead_.size()); }
  int64_t place_of(int64_t turn) const { return static_cast<int64_t>(static_cast<size_t>(turn) % ahead_.size()); }
  Ahead& ahead(int64_t place) { return ahead_[static_cast<size_t>(place)]; }
  char* ahead_at(int64_t place) const { return ahead_arena_.data() + place * windows_.read_bytes(); }

 private:
  struct List {  // of clean frames, the one that was used longest ago first
    int32_t first = -1, last = -1;
  };
  void link(int64_t frame);
  void unlink(int64_t frame);

  const Windows& windows_;
  const int64_t stride_;
  Mapped arena_, ahead_arena_;
  std::vector<Frame> frames_;
  std::vector<int32_t> free_;
  List idle_, expected_;
  std::vector<int32_t> frame_of_;  // by client; negative: none
  std::vector<Ahead> ahead_;
};

}  // namespace fastagg::store
