// A row per client and the sum of the rows (ACE, ACED). Or only the sum, if clients keep their rows and send
// differences.
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
    bool full;                // no step until all clients have answered
    bool direct;              // the sum is recomputed for every update
    int64_t max_delay = -1;   // ACED: the most versions that a row's information may be old; negative: no limit
    bool by_dispatch = true;  // ACED: freshness is that of the last model sent to the client; false: that of its row
    uint64_t seed = 0;
    float* sum = nullptr;
  };
  // `resummation`: recomputes the sum little by little; may be null.
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

// The sum alone. Clients keep their rows, and send the differences between them.
class Differences : public DirectionState, public RowKeeper {
 public:
  // `full`: no step until all clients have answered.
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
