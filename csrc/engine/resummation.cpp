#include "resummation.h"

#include <algorithm>
#include <stdexcept>

namespace fastagg::engine {
namespace {

constexpr int64_t kRowsAtOnce = 16;
constexpr auto kShadow = static_cast<int64_t>(kBlock * sizeof(double));  // the size of a block's shadow, in bytes

__extension__ typedef unsigned __int128 Wide;

}  // namespace

Resummation::Resummation(const Rows& rows, std::shared_ptr<store::Memory> memory, store::Owner owner)
    : rows_(rows),
      blocks_((rows.size + kBlock - 1) / kBlock),
      cycle_(kResummationCycle * rows.slots),
      memory_(std::move(memory)),
      owner_(std::move(owner)) {}

void Resummation::make_room(int64_t shadows) {
  if (shadows <= capacity_) return;
  const int64_t capacity = std::max(shadows, capacity_ + capacity_ / 4);
  free_.reserve(static_cast<size_t>(capacity));  // so that `put` and `cancel` do not allocate
  arenas_.push_back(memory_->bytes((capacity - capacity_) * kShadow));
  auto* const first = reinterpret_cast<double*>(arenas_.back().data);
  for (int64_t i = capacity - capacity_; i-- > 0;) free_.push_back(first + i * kBlock);
  capacity_ = capacity;
}

// Whether the recomputation of this block begins with this arrival. In each cycle of arrivals, block b begins when the
// share of past arrivals is the fractional part of b times the golden ratio. These parts are evenly spread.
bool Resummation::begins(int64_t block, int64_t arrival) const {
  const uint64_t place = static_cast<uint64_t>(block) * 0x9E3779B97F4A7C15ull;
  const auto turn = static_cast<int64_t>((static_cast<Wide>(place) * static_cast<uint64_t>(cycle_)) >> 64);
  return turn == arrival % cycle_;
}

void Resummation::begin(int64_t arrival) {
  cancel();
  for (int64_t block = 0; block < blocks_; ++block) {
    if (!begins(block, arrival)) continue;
    if (free_.empty()) make_room(capacity_ + 1);
    flights_.push_back({block, 0, free_.back(), 0});
    free_.pop_back();
  }
  jobs_.reserve(flights_.size());
  done_.reserve(flights_.size());
}

void Resummation::follow(Runner& runner, int64_t slot, float weight) {
  jobs_.clear();
  for (const Flight& flight : flights_)
    if (slot < flight.done) jobs_.push_back({flight.block, slot, slot + 1, flight.shadow});
  if (!jobs_.empty()) runner.add_rows(rows_, jobs_, nullptr, weight);
}

void Resummation::leaves(Runner& runner, int64_t slot, float weight) {
  if (weight != 0.0f) follow(runner, slot, -weight);
}

void Resummation::enters(Runner& runner, int64_t slot, float weight) {
  if (weight != 0.0f) follow(runner, slot, weight);
}

void Resummation::advance(Runner& runner, const float* weights, float* sum) {
  jobs_.clear();
  done_.clear();
  for (Flight& flight : flights_) {
    const int64_t until = std::min(rows_.slots, flight.done + kRowsAtOnce);
    jobs_.push_back({flight.block, flight.done, until, flight.shadow, 0, flight.done == 0});
    flight.done = until;
    if (until == rows_.slots) done_.push_back(jobs_.back());
  }
  if (!jobs_.empty()) runner.add_rows(rows_, jobs_, weights, 0.0f);
  if (!done_.empty()) runner.settle_rows(done_, sum, rows_.size);
}

void Resummation::put() noexcept {
  const auto ended = [&](const Flight& flight) {
    if (flight.done < rows_.slots) return false;
    free_.push_back(flight.shadow);
    return true;
  };
  flights_.erase(std::remove_if(flights_.begin(), flights_.end(), ended), flights_.end());
  before_ = flights_.size();
  for (Flight& flight : flights_) flight.held = flight.done;
}

// Undoes an arrival that was planned but did not happen.
void Resummation::cancel() noexcept {
  while (flights_.size() > before_) {
    free_.push_back(flights_.back().shadow);
    flights_.pop_back();
  }
  for (Flight& flight : flights_) flight.done = flight.held;
}

void Resummation::fields(Archive& archive) {
  std::vector<int64_t> blocks, done;
  std::vector<double> shadows;
  for (size_t i = 0; i < before_; ++i) {  // later flights belong to an update that was refused
    const Flight& flight = flights_[i];
    blocks.push_back(flight.block), done.push_back(flight.done);
    shadows.resize(shadows.size() + kBlock);
    memory_->get(shadows.data() + shadows.size() - kBlock, flight.shadow, kShadow);
    const int64_t beyond = std::max<int64_t>((flight.block + 1) * kBlock - rows_.size, 0);
    std::fill(shadows.end() - beyond, shadows.end(), 0.0);  // elements after the end of the vector, which nobody writes
  }
  archive.list("blocks", blocks);
  archive.list("done", done);
  archive.rows("shadows", shadows, kBlock);
  if (!archive.loads) return;
  if (blocks.size() != done.size() || shadows.size() != blocks.size() * kBlock)
    throw std::invalid_argument("a resummation's columns of different lengths");
  if (blocks.empty()) return;
  make_room(static_cast<int64_t>(blocks.size()));
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] < 0 || blocks[i] >= blocks_ || done[i] < 0 || done[i] >= rows_.slots)
      throw std::invalid_argument("a resummation's block or row out of range");
    flights_.push_back({blocks[i], done[i], free_.back(), done[i]});
    free_.pop_back();
    memory_->put(flights_.back().shadow, &shadows[i * kBlock], kShadow);
  }
  before_ = flights_.size();
}

}  // namespace fastagg::engine
