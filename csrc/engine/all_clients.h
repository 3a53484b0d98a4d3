// The directions that sum over all clients. AllClients has a row for each client and the sum of the rows (ACE, ACED).
// Differences has only the sum.
#pragma once

#include <memory>
#include <optional>

#include "direction.h"
#include "resummation.h"
#include "row_weights.h"

namespace fastagg::engine {

class AllClients : public DirectionState, public RowKeeper {
 public:
  struct Setting {
    int64_t clients;
    bool full;                // whether no step is made until all clients have answered
    bool direct;              // whether the sum is recomputed for every update
    int64_t max_delay = -1;   // ACED: the largest age of a row's information, in versions; negative: no limit
    bool by_dispatch = true;  // ACED: ages count from the last model sent to the client; false: from its row
    uint64_t seed = 0;
    float* sum = nullptr;
  };
  // `resummation` recomputes the sum block by block. It may be null.
  AllClients(double sign, const Setting& setting, const Rows& rows, std::shared_ptr<Resummation> resummation);
  Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) override;
  void run(Runner& runner, const Optimizer& optimizer) override;
  void commit() noexcept override;
  void cancel() noexcept override;
  int64_t writes(int64_t client) const override { return client; }
  void fields(Archive& archive) override;
  int64_t nbytes() const override {
    return weights_.nbytes() + (ages_ ? ages_->nbytes() : 0) + (resummation_ ? resummation_->nbytes() : 0);
  }

 private:
  RandomKey key(int64_t client) const {
    return {setting_.seed, static_cast<uint64_t>(weights_.arrivals), static_cast<uint32_t>(client)};
  }
  void plan_bounds();
  Direction exchange() const;

  const Setting setting_;
  const Rows rows_;
  const std::shared_ptr<Resummation> resummation_;
  RowWeights weights_;
  std::optional<Freshness> ages_;
  // Planned:
  Contribution contributions_;
  Outcome outcome_ = Outcome::kKept;
  bool direct_ = false;  // whether this update recomputes the sum directly
  Update mean_;
};

// A direction that stores only the sum of all rows. Each client keeps its own row, and sends its new row minus its
// previous one.
class Differences : public DirectionState, public RowKeeper {
 public:
  // `full`: whether no step is made until all clients have answered.
  Differences(double sign, int64_t clients, bool full, float* sum);
  Outcome plan(const Contributions& contributions, bool closes, ReadMode mode) override;
  void run(Runner& runner, const Optimizer& optimizer) override;
  void commit() noexcept override { weights_.commit(false); }
  void cancel() noexcept override { weights_.take_back(); }
  void fields(Archive& archive) override { weights_.fields(archive), weights_.fields_of_totals(archive, false); }
  int64_t nbytes() const override { return weights_.nbytes(); }

 private:
  const bool full_;
  float* const sum_;
  RowWeights weights_;
  Outcome outcome_ = Outcome::kKept;
  const Update* update_ = nullptr;
  Direction direction_;
};

}  // namespace fastagg::engine
