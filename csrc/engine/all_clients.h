// A row per client and their sum (ACE, ACED); or the sum alone, where clients keep their rows and send differences.
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
    bool full;                // nothing is applied until all clients have been heard
    bool direct;              // the sum is recomputed for every update
    int64_t max_delay = -1;   // ACED: how many versions a row's information may be old; negative: for ever
    bool by_dispatch = true;  // ACED: as fresh as the last model the client was sent, or as its row
    uint64_t seed = 0;
    float* sum = nullptr;
  };
  // `resummation`: adds up the sum again, little by little; null: nothing does.
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
  bool direct_ = false;  // this time
  Update mean_;
};

// Clients keep their rows, and send how these change.
class Differences : public DirectionState, public RowKeeper {
 public:
  // `full`: nothing is applied until all clients have been heard.
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
