// The rows of all clients, wherever they lie, and what keeps their sum from drifting.
//
// An arrival calls `plan`, which may fail, and then, of what was planned: `leaves`, the kernel that reads the old row
// and writes the new one, `enters` of it and of every term, `advance`; and at last `put`.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../plan.h"
#include "../runner.h"

namespace fastagg::store {

// Rows that cannot be read or written, and why. Becomes fastagg.errors.CacheError.
class RowsFailed : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A row that is not what was written.
class RowDamaged : public RowsFailed {
 public:
  RowDamaged(int64_t which, const std::string& what) : RowsFailed(what), client(which) {}
  int64_t client;
};

class RowStore {
 public:
  // Clients whose rows leave the sum or come back into it, in order, and by how much their weights change: from or to
  // 0.
  using Terms = std::vector<std::pair<int64_t, float>>;
  struct RowStep {
    int64_t number;  // of arrivals before it
    int64_t client;
    bool replaces;   // its client's row is in the sum
    float entering;  // the weight of its new row
    const Terms* terms;
    const std::vector<float>* weights;  // of the rows in the sum, by client
  };

  virtual ~RowStore() = default;
  // The format and the size of a row, and all rows if they are in memory.
  virtual Rows shape() const = 0;
  // A client was sent a model: its row is wanted soon.
  virtual void expect(int64_t) noexcept {}
  // What the arrival reads is there, and room for what it writes. Nothing has changed. Throws RowDamaged.
  virtual void plan(const RowStep&) {}
  virtual Row read(int64_t client) const = 0;   // of the client, or of a term unless they are aside
  virtual Row place(int64_t client) const = 0;  // of its new row
  // Terms that are not in memory are added to the sum part by part, as they are read. It may fail, so the arrival takes
  // place in a copy of the sum, before anything changes: after `enters`, `add_terms`.
  virtual bool is_aside() const { return false; }
  virtual void add_terms(Runner&, float*) {}
  // What a row weighs in the sum goes away, or comes. The first before the row is written, the second after.
  virtual void leaves(Runner&, int64_t, float) {}
  virtual void enters(Runner&, int64_t, float) {}
  // After all that: a part of the sum is added up again. It is given the weights of the rows as they are now.
  virtual void advance(Runner&, const float*, float*) {}
  virtual void put() noexcept {}
  virtual void cancel() noexcept {}
  virtual int64_t nbytes() const { return 0; }

  // Rows on a disk: all clients, of those in the sum, whose rows are damaged. Takes as long as reading them all.
  virtual std::vector<int64_t> find_lost(const std::vector<float>&) { return {}; }
  // Adds up all rows again, but for those of `lost` clients, which are given up. Takes as long as reading them all. If
  // it fails, nothing has changed.
  virtual void give_up(Runner&, const std::vector<float>&, const std::vector<int64_t>&, float*) {}
};

}  // namespace fastagg::store
