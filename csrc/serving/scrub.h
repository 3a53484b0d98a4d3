// Keeps a sum over rows that is updated arrival by arrival from drifting: little by little it is added up again,
// exactly, at a cost that is the same at every arrival and for any number of rows.
//
// Every block of 1,024 elements is added up once in four arrivals per row, 16 rows at an arrival, into a shadow in
// double; when all rows are in it, it becomes the block of the sum. A row that changes meanwhile changes the shadow,
// too. When a block's turn comes follows from its place in the whole model and the number of rows alone, so a slice
// does what the whole does; and the turns lie evenly over the arrivals, however many blocks there are.
//
// Read at an arrival: a quarter of a row and what it takes to follow the row that changed, a 128th. Kept: an eighth of
// a byte per parameter, in memory that grows by doubling.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <vector>

#include "../math/reduce.h"
#include "../plan.h"

namespace fastagg::serving {

namespace py = pybind11;

class Runner;

class Scrub {
 public:
  // `grow(arena, count)` gives a tensor [count, 1024] in double where the rows are, which begins with what `arena`
  // held. `on_host`: whether that is memory of the processor.
  Scrub(const Rows& rows, int64_t origin, py::function grow, bool on_host);

  // Before anything changes: room for what this arrival begins.
  void plan(int64_t arrival);
  // What a row weighs in the sum goes away, or comes. The first before the row is written, the second after.
  void leaves(Runner& runner, int64_t slot, float weight);
  void enters(Runner& runner, int64_t slot, float weight);
  // After all that: 16 rows more, and the blocks that are done. `weights`: of the rows as they are now.
  void advance(Runner& runner, const float* weights, float* sum);
  void commit() noexcept;
  void cancel() noexcept;

  int64_t nbytes() const { return capacity_ * kBlock * static_cast<int64_t>(sizeof(double)); }

  py::dict state() const;
  void load(const py::dict& state);

 private:
  struct Flight {
    int64_t block, done;  // rows below `done` are in the shadow
    int64_t shadow;
    int64_t held;  // `done` before this arrival
  };
  void follow(Runner& runner, int64_t slot, float weight);
  bool begins(int64_t block, int64_t arrival) const;
  void make_room(int64_t shadows);
  double* shadow(const Flight& flight) const { return shadows_ + flight.shadow * kBlock; }

  Rows rows_;
  int64_t first_block_, blocks_, cycle_;
  py::function grow_;
  bool on_host_;
  py::object arena_ = py::none();
  double* shadows_ = nullptr;
  int64_t capacity_ = 0;
  std::vector<int64_t> free_;
  std::vector<Flight> flights_;
  size_t before_ = 0;  // flights that had begun before this arrival
  std::vector<RowJob> jobs_, done_;
};

}  // namespace fastagg::serving
