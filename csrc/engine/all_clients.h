// Directions along the weighted mean of clients' latest updates. AllClients stores each client's latest update as a
// row, and the weighted sum of the rows (ACE; ACED leaves old rows out). Differences stores only the sum.
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
    bool direct;              // whether every update recomputes the sum from all rows
    int64_t max_delay = -1;   // ACED: the largest age, in versions, of a row in the sum; negative: no limit
    bool by_dispatch = true;  // whether ages count from the version last sent to the client; false: the row's version
    uint64_t seed = 0;
    float* sum = nullptr;
  };
  // `resummation` recomputes a few blocks of the sum with each update (resummation.h). Null: there is no resummation.
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
  // The plan for the next update:
  Contribution contributions_;
  Outcome outcome_ = Outcome::kKept;
  bool direct_ = false;  // whether this update recomputes the sum from all rows
  Update mean_;
};

// The direction along the mean of all clients' rows, for clients that store their own rows. All rows have the weight 1.
// A client sends its new row minus its previous row. The server stores only the sum of all rows.
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
