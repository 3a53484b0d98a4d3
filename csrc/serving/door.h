// The way in for the usual update of a server with a journal, in one native call: its turn, the arrival with its
// record, and the wait for the disk. Calls of Python's for each of these take longer than a small step.
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

  // As Road::take. The receipt comes when the record is on the disk, if its sender waits for that.
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

  py::object follow = py::none();  // called with the server's lock when the model is another one
  py::object tell_slow = py::none();
  double slow = std::numeric_limits<double>::infinity();  // seconds from which `tell_slow` is told

 private:
  struct Inside {
    explicit Inside(Turn* turn) : turn_(turn) {}
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() {
      try {
        turn_->exit();
      } catch (const py::error_already_set&) {  // somebody else's lock by now: a forked child's
      }
    }
    Turn* turn_;
  };

  py::object held_;
  Turn* turn_;
  std::shared_ptr<Road> road_;
};

}  // namespace fastagg::serving
