#include "scrub.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <stdexcept>

#include "books.h"

namespace fastagg::serving {
namespace {

constexpr int64_t kRowsAtOnce = 16, kCycle = 4;  // arrivals per row in which every block has its turn

__extension__ typedef unsigned __int128 Wide;

}  // namespace

Scrub::Scrub(const Rows& rows, int64_t origin, py::function grow, bool on_host)
    : rows_(rows),
      first_block_(origin / kBlock),
      blocks_((rows.size + kBlock - 1) / kBlock),
      cycle_(kCycle * rows.slots),
      grow_(std::move(grow)),
      on_host_(on_host) {}

void Scrub::make_room(int64_t shadows) {
  if (shadows <= capacity_) return;
  const int64_t capacity = std::max(shadows, capacity_ + capacity_ / 4);
  free_.reserve(static_cast<size_t>(capacity));  // so that `commit` cannot fail
  arena_ = grow_(arena_, capacity);
  shadows_ = reinterpret_cast<double*>(py::cast<uintptr_t>(arena_.attr("data_ptr")()));
  for (int64_t i = capacity; i-- > capacity_;) free_.push_back(i);
  capacity_ = capacity;
}

// Multiples of the golden ratio, less whole numbers, fill a cycle evenly however few of them there are.
bool Scrub::begins(int64_t block, int64_t arrival) const {
  const uint64_t place = static_cast<uint64_t>(first_block_ + block) * 0x9E3779B97F4A7C15ull;
  const auto turn = static_cast<int64_t>((static_cast<Wide>(place) * static_cast<uint64_t>(cycle_)) >> 64);
  return turn == arrival % cycle_;
}

void Scrub::plan(int64_t arrival) {
  cancel();
  for (int64_t block = 0; block < blocks_; ++block) {
    if (!begins(block, arrival)) continue;
    if (free_.empty()) make_room(capacity_ + 1);
    flights_.push_back({block, 0, free_.back(), 0});
    free_.pop_back();
    const Flight& flight = flights_.back();
    if (on_host_) {
      std::fill_n(shadow(flight), kBlock, 0.0);
    } else {
      arena_.attr("__getitem__")(flight.shadow).attr("zero_")();
    }
  }
  jobs_.reserve(flights_.size());
  done_.reserve(flights_.size());
}

void Scrub::follow(Runner& runner, int64_t slot, float weight) {
  jobs_.clear();
  for (const Flight& flight : flights_)
    if (slot < flight.done) jobs_.push_back({flight.block, slot, slot + 1, shadow(flight)});
  if (!jobs_.empty()) runner.add_rows(rows_, jobs_, nullptr, weight);
}

void Scrub::leaves(Runner& runner, int64_t slot, float weight) {
  if (weight != 0.0f) follow(runner, slot, -weight);
}

void Scrub::enters(Runner& runner, int64_t slot, float weight) {
  if (weight != 0.0f) follow(runner, slot, weight);
}

void Scrub::advance(Runner& runner, const float* weights, float* sum) {
  jobs_.clear();
  done_.clear();
  for (Flight& flight : flights_) {
    const int64_t until = std::min(rows_.slots, flight.done + kRowsAtOnce);
    jobs_.push_back({flight.block, flight.done, until, shadow(flight)});
    flight.done = until;
    if (until == rows_.slots) done_.push_back(jobs_.back());
  }
  if (!jobs_.empty()) runner.add_rows(rows_, jobs_, weights, 0.0f);
  if (!done_.empty()) runner.settle_rows(done_, sum, rows_.size);
}

void Scrub::commit() noexcept {
  const auto ended = [&](const Flight& flight) {
    if (flight.done < rows_.slots) return false;
    free_.push_back(flight.shadow);
    return true;
  };
  flights_.erase(std::remove_if(flights_.begin(), flights_.end(), ended), flights_.end());
  before_ = flights_.size();
  for (Flight& flight : flights_) flight.held = flight.done;
}

// An arrival that was planned and did not come about is taken back by the next plan: nothing else has changed.
void Scrub::cancel() noexcept {
  while (flights_.size() > before_) {
    free_.push_back(flights_.back().shadow);
    flights_.pop_back();
  }
  for (Flight& flight : flights_) flight.done = flight.held;
}

py::dict Scrub::state() const {
  std::vector<int64_t> blocks, done, places;
  for (size_t i = 0; i < before_; ++i) {  // those of an arrival that was planned and refused have not begun
    const Flight& flight = flights_[i];
    blocks.push_back(flight.block), done.push_back(flight.done), places.push_back(flight.shadow);
  }
  py::dict state;
  state["blocks"] = blocks;
  state["done"] = done;
  state["shadows"] = places.empty() ? py::object(py::none()) : py::object(arena_.attr("__getitem__")(places));
  return state;
}

void Scrub::load(const py::dict& state) {
  const auto blocks = py::cast<std::vector<int64_t>>(state["blocks"]);
  const auto done = py::cast<std::vector<int64_t>>(state["done"]);
  if (blocks.size() != done.size()) throw std::invalid_argument("a scrub's columns of different lengths");
  if (blocks.empty()) return;
  make_room(static_cast<int64_t>(blocks.size()));
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] < 0 || blocks[i] >= blocks_ || done[i] < 0 || done[i] >= rows_.slots)
      throw std::invalid_argument("a scrub's block or row out of range");
    const int64_t place = free_.back();
    free_.pop_back();
    arena_.attr("__getitem__")(place).attr("copy_")(state["shadows"].attr("__getitem__")(i));
    flights_.push_back({blocks[i], done[i], place, done[i]});
  }
  before_ = flights_.size();
}

}  // namespace fastagg::serving
