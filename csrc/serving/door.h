// The usual arrival at a server with a journal, in one native call: wait for the turn, take the update, make the
// record, wait for the disk. Separate calls from Python for these stages would take longer than a small step.
#pragma once

#include <chrono>

#include "records.h"
#include "road.h"
#include "turn.h"

namespace fastagg::serving {

class Door {
 public:
  Door(py::object turn, std::shared_ptr<Road> road) : held_(std::move(turn)), road_(std::move(road)) {
    turn_ = &py::cast<Turn&>(held_);
  }

  // Does what Road::take does. If the sender waits for the disk, the receipt is returned when the record is on the
  // disk.
  py::object take(py::handle client, py::handle update, py::handle version, py::handle num_samples) {
    const auto begun = std::chrono::steady_clock::now();
    Held held(road_->journal());
    held.enter();
    py::object receipt;
    {
      turn_->enter();
      const Inside inside(turn_);
      receipt = road_->take(client, update, version, num_samples);
      if (receipt.is_none()) return receipt;
      if (!follow.is_none()) follow();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    if (took.count() > slow) tell_slow(took.count());
    if (held.last > 0) held.wait();
    return receipt;
  }

  py::object follow = py::none();  // called under the server's lock, after an update was taken
  py::object tell_slow = py::none();
  // a call that takes more seconds than this is reported to `tell_slow`
  double slow = std::numeric_limits<double>::infinity();

 private:
  struct Inside {
    explicit Inside(Turn* turn) : turn_(turn) {}
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() {
      try {
        turn_->exit();
      } catch (const py::error_already_set&) {  // in a forked child the lock belongs to another thread
      }
    }
    Turn* turn_;
  };

  py::object held_;
  Turn* turn_;
  std::shared_ptr<Road> road_;
};

}  // namespace fastagg::serving
