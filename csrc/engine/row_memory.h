// The rows of all clients in memory, the host's or a device's, and the resummation of their sum. A sum that is
// recomputed for every update has none.
#pragma once

#include <memory>
#include <utility>

#include "../store/row_store.h"
#include "resummation.h"

namespace fastagg::engine {

class RowMemory : public store::RowStore {
 public:
  RowMemory(const Rows& rows, std::shared_ptr<Resummation> resummation)
      : rows_(rows), resummation_(std::move(resummation)) {}
  Rows shape() const override { return rows_; }
  void plan(const RowStep& arrival) override {
    if (resummation_) resummation_->plan(arrival.number);
  }
  Row read(int64_t client) const override { return rows_.row(client); }
  Row place(int64_t client) const override { return rows_.row(client); }
  void leaves(Runner& runner, int64_t client, float weight) override {
    if (resummation_) resummation_->leaves(runner, client, weight);
  }
  void enters(Runner& runner, int64_t client, float weight) override {
    if (resummation_) resummation_->enters(runner, client, weight);
  }
  void advance(Runner& runner, const float* weights, float* sum) override {
    if (resummation_) resummation_->advance(runner, weights, sum);
  }
  void put() noexcept override {
    if (resummation_) resummation_->commit();
  }
  void cancel() noexcept override {
    if (resummation_) resummation_->cancel();
  }
  int64_t nbytes() const override { return resummation_ ? resummation_->nbytes() : 0; }

 private:
  const Rows rows_;
  const std::shared_ptr<Resummation> resummation_;
};

}  // namespace fastagg::engine
