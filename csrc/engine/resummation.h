// Keeps a sum over rows, which every arrival changes, from drifting. The sum is recomputed exactly, some blocks at a
// time. The cost is the same at every arrival, for any number of rows.
//
// With n rows, every block of 1,024 elements is recomputed once in 4n arrivals. Each arrival adds 16 rows to the
// block's shadow, a sum in double. When all rows are in the shadow, the shadow replaces the block of the sum. A row
// that changes before that changes the shadow, too. A block's turn depends only on its place and the number of rows.
// Turns are spread evenly over the arrivals.
//
// Each arrival reads a quarter of a row for new rows, and a 128th of a row for the row that changed. Shadows take an
// eighth of a byte per parameter. Their memory grows, and never moves.
#pragma once

#include <memory>
#include <vector>

#include "../math/reduce.h"
#include "../runner.h"
#include "../store/vector.h"
#include "archive.h"

namespace fastagg::engine {

constexpr int64_t kResummationCycle = 4;  // in so many arrivals per row every block is recomputed once

class Resummation {
 public:
  // `memory`: the memory that has the rows. `owner` keeps the rows alive.
  Resummation(const Rows& rows, std::shared_ptr<store::Memory> memory, store::Owner owner);

  // Makes room for the blocks whose recomputation this arrival begins.
  void begin(int64_t arrival);
  // `leaves` subtracts the row from shadows before the row is written. `enters` adds the new row afterwards.
  void leaves(Runner& runner, int64_t slot, float weight);
  void enters(Runner& runner, int64_t slot, float weight);
  // Adds 16 more rows to each shadow, and finishes complete blocks. `weights`: the present weights of the rows.
  void advance(Runner& runner, const float* weights, float* sum);
  void put() noexcept;
  void cancel() noexcept;

  int64_t nbytes() const { return capacity_ * kBlock * static_cast<int64_t>(sizeof(double)); }

  void fields(Archive& archive);

 private:
  struct Flight {
    int64_t block, done;  // rows below `done` are in the shadow
    double* shadow;
    int64_t held;  // `done` before this arrival
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
  size_t before_ = 0;  // the number of flights that had begun before this arrival
  std::vector<RowJob> jobs_, done_;
};

}  // namespace fastagg::engine
