// Keeps a sum over rows that is updated arrival by arrival from drifting: little by little it is added up again,
// exactly, at a cost that is the same at every arrival and for any number of rows.
//
// Every block of 1,024 elements is added up once in four arrivals per row, 16 rows at an arrival, into a shadow in
// double; when all rows are in it, it becomes the block of the sum. A row that changes meanwhile changes the shadow,
// too. When a block's turn comes follows from its place and the number of rows alone, and the turns lie evenly over the
// arrivals, however many blocks there are.
//
// Read at an arrival: a quarter of a row and what it takes to follow the row that changed, a 128th. Kept: an eighth of
// a byte per parameter, in memory that grows and does not move.
#pragma once

#include <memory>
#include <vector>

#include "../math/reduce.h"
#include "../runner.h"
#include "../store/vector.h"
#include "archive.h"

namespace fastagg::engine {

constexpr int64_t kResummationCycle = 4;  // updates per row in which every block has its turn

class Resummation {
 public:
  // `memory`: where the rows are. `owner` keeps them alive.
  Resummation(const Rows& rows, std::shared_ptr<store::Memory> memory, store::Owner owner);

  // Room for what this arrival begins.
  void begin(int64_t arrival);
  // Removes a row's weight from the sum, before the row is written, and adds it again, after.
  void leaves(Runner& runner, int64_t slot, float weight);
  void enters(Runner& runner, int64_t slot, float weight);
  // 16 rows more, and the blocks that are done. `weights`: of the rows as they are now.
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
  std::vector<store::Vector> arenas_;  // of shadows
  int64_t capacity_ = 0;
  std::vector<double*> free_;
  std::vector<Flight> flights_;
  size_t before_ = 0;  // flights that had begun before this arrival
  std::vector<RowJob> jobs_, done_;
};

}  // namespace fastagg::engine
