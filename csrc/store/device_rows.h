// The uppermost tier: rows on a device, next to its kernels. Frames of host memory (tiers.h) are the tier below.
//
// A frame on the device holds the row of a client. When the client is sent a model its row is copied here, on a stream
// of its own. An arrival reads its client's frame and writes the new row to another one, and that row is copied back to
// a frame of the host. A frame is used again for the row that was used longest ago; nothing is lost with it, because
// the host or the disk has every row.
//
// The host waits for none of this. Every frame has a mark (copies.h): copies and kernels use it in turn.
// All methods are called with the tiers' mutex, but for those that say otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "../runner.h"
#include "copies.h"
#include "vector.h"
#include "windows.h"

namespace fastagg::store {

class DeviceRows {
 public:
  using Mark = Copies::Mark;
  static constexpr int64_t kLeast = 4;  // an arrival's two, one that is copied here, one that is copied back

  struct Setting {
    Windows windows;
    int64_t clients;
    int64_t bytes;  // of frames; negative: as many frames as rows are in flight
    int64_t most;   // frames
    int64_t aheads;
    int64_t stages;  // windows of an arrival, at most
  };

  // Gives so many bytes of the device; none where there is no room.
  using Allocate = std::function<Vector(int64_t bytes)>;

  // Throws std::invalid_argument: the bytes hold fewer rows than an arrival needs.
  DeviceRows(const Setting& setting, std::shared_ptr<Copies> copies, Allocate memory);
  DeviceRows(const DeviceRows&) = delete;
  DeviceRows& operator=(const DeviceRows&) = delete;

  Copies& copies() { return *copies_; }
  // Without the mutex: memory for the first frames, the windows of the resummation and its `shadow`, which has so many
  // numbers. Once is enough.
  void start(size_t shadow);
  double* shadow() const { return shadow_; }
  // Without the mutex: how many more frames there should be, and their memory. None: no room.
  int64_t wanted(int64_t least) const;
  Vector memory_for(int64_t frames) const { return memory_(frames * setting_.windows.stride()); }
  void add(Vector memory, int64_t frames);
  void stay() { setting_.most = frames(); }  // there is no memory for more

  int64_t frames() const { return static_cast<int64_t>(frames_.size()); }
  int64_t nbytes() const { return nbytes_; }

  // Of a host's frame, and of a place where windows are read ahead.
  Mark mark_of_host(int64_t frame) const { return host_[static_cast<size_t>(frame)]; }
  Mark mark_of_ahead(int64_t place) const { return aheads_[static_cast<size_t>(place)]; }
  // Any thread, without the mutex: waits until the device does not use that memory any more.
  void wait(Mark mark) { copies_->wait(mark); }

  bool has(int64_t client) const { return of_[static_cast<size_t>(client)] >= 0; }
  // Its client was sent a model: it stays as long as possible.
  void expect(int64_t client) noexcept;
  // The same, for a row that is at `from` in the host's memory: a copy begins. False: all frames are waited for.
  bool fetch(int64_t client, const char* from, Mark mark);
  void drop(int64_t client) noexcept;

  // What the planned arrival uses, until `commit` or `release`. A row that the device has; one that is at `from` in the
  // host's memory; an empty frame; a window of a row in the host's memory.
  Row hold(int64_t client);
  Row hold(int64_t client, const char* from, Mark mark);
  Row hold_new();
  Row stage(const Row& part, int64_t window, Mark mark);
  // Kernels that use it are launched between these two. Then the new row is copied to the host.
  void begin(Runner& runner);
  void end(Runner& runner, char* to, Mark mark);
  void commit(int64_t client) noexcept;
  void release() noexcept;

  // A window of a row that the device has, read into the host's memory as from the file. Waits.
  Row read(int64_t client, int64_t window, char* into);

 private:
  enum Place : uint8_t { kFree, kIdle, kExpected, kHeld, kPlaces };
  struct Frame {
    char* at;
    Mark mark;
    int64_t client = -1;
    Place place = kFree, back = kFree;  // `back`: where it goes after the arrival that holds it
    std::list<int32_t>::iterator node{};
  };

  Frame& frame(int32_t which) { return frames_[static_cast<size_t>(which)]; }
  void move(int32_t which, Place to) noexcept;
  void empty(int32_t which) noexcept;
  int32_t victim(bool also_expected) noexcept;
  int32_t held_victim();
  void fill(int32_t which, int64_t client, const char* from, Mark mark);
  std::vector<Mark> held_marks() const;
  Row row(int32_t which) { return setting_.windows.row_at(frame(which).at); }

  Setting setting_;
  Allocate memory_;
  std::vector<Vector> arenas_;
  std::shared_ptr<Copies> copies_;
  int64_t nbytes_ = 0;
  double* shadow_ = nullptr;
  std::vector<Frame> frames_;
  std::list<int32_t> lists_[kPlaces];  // by place; what was used longest ago comes first
  std::vector<int32_t> of_;            // by client; negative: none
  std::vector<Mark> host_, aheads_;
  struct Stages {  // windows of rows for one arrival
    char* at = nullptr;
    Mark mark = nullptr;
    int64_t used = 0;
  };
  Stages stages_[2];

  // Of the planned arrival:
  int32_t fresh_ = -1;
  int half_ = 0;  // which of the stages it uses: arrivals take turns, so that copies need not wait for kernels
};

}  // namespace fastagg::store
