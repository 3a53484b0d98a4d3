// Bounds the rounding errors of the sum of rows. Every arrival of an update changes the sum, with a rounding error. So
// each arrival also recomputes a few blocks of the sum in double. The cost is the same for any number of rows.
//
// With n rows, every block of 1,024 elements is recomputed once in 4n arrivals. The recomputation of a block takes n/16
// arrivals, and is called a flight. Each arrival in a flight adds 16 rows to the block's shadow, a sum in double. At
// the end the shadow replaces the block of the sum. If a row changes that is in the shadow already, the shadow changes,
// too. The arrival at which a flight begins depends only on the block's number and the number of rows. The beginnings
// of flights are evenly spread.
//
// On average an arrival reads a quarter of a row to extend shadows, and a 128th of the old and of the new row.
// Shadows take an eighth of a byte per parameter. Their memory grows when needed. A shadow is never moved.
#pragma once

#include <memory>
#include <vector>

#include "../math/reduce.h"
#include "../runner.h"
#include "../store/vector.h"
#include "archive.h"

namespace fastagg::engine {

constexpr int64_t kResummationCycle = 4;  // every block is recomputed once in this many arrivals per row

class Resummation {
 public:
  // `memory`: the memory in which the rows are. `owner` keeps the rows alive.
  Resummation(const Rows& rows, std::shared_ptr<store::Memory> memory, store::Owner owner);

  // Begins the arrival of this number, and the flights of the blocks whose recomputation begins with this arrival.
  void begin(int64_t arrival);
  // `leaves` subtracts a row from all shadows that have the row, before the row is written. `enters` adds the new row
  // after the row is written. `weight`: the row's weight in the sum.
  void leaves(Runner& runner, int64_t slot, float weight);
  void enters(Runner& runner, int64_t slot, float weight);
  // Adds the next 16 rows to each shadow, and copies complete shadows to the sum. `weights`: the rows' current weights.
  void advance(Runner& runner, const float* weights, float* sum);
  void put() noexcept;     // commits the arrival
  void cancel() noexcept;  // undoes the arrival instead

  int64_t nbytes() const { return capacity_ * kBlock * static_cast<int64_t>(sizeof(double)); }

  void fields(Archive& archive);

 private:
  struct Flight {
    int64_t block, done;  // the rows in slots below `done` are in the shadow
    double* shadow;
    int64_t held;  // the value of `done` before this arrival
  };
  void follow(Runner& runner, int64_t slot, float weight);
  bool begins(int64_t block, int64_t arrival) const;
  void make_room(int64_t shadows);

  const Rows rows_;
  int64_t blocks_, cycle_;
  std::shared_ptr<store::Memory> memory_;
  store::Owner owner_;
  std::vector<store::Vector> arenas_;  // the memory of shadows
  int64_t capacity_ = 0;
  std::vector<double*> free_;
  std::vector<Flight> flights_;
  size_t before_ = 0;  // how many flights had begun before this arrival
  std::vector<RowJob> jobs_, done_;
};

}  // namespace fastagg::engine
