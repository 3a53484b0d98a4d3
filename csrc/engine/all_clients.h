// A row per client and their sum (ACE, ACED); without rows the clients keep them and send differences.
#pragma once

#include <memory>
#include <unordered_map>

#include "direction.h"
#include "exact.h"
#include "row_memory.h"

namespace fastagg::engine {

class AllClients : public DirectionState, public RowKeeper, public Ages {
 public:
  struct Setting {
    int64_t clients;
    bool full;                // nothing is applied until all clients have been heard
    bool direct;              // the sum is recomputed for every update
    int64_t max_delay = -1;   // ACED: how many versions a row's information may be old; negative: for ever
    bool by_dispatch = true;  // ACED: as fresh as the last model the client was sent, or as its row
  };
  // `rows`: null if the clients keep them. `resums`: they are in memory, and their sum is added up again all the time.
  AllClients(double sign, const Setting& setting, std::shared_ptr<store::RowStore> rows, bool resums, uint64_t seed,
             float* sum);
  Outcome plan(const Contributions& given, bool closes, Way way) override;
  void run(Runner& runner, const Updates& updates, const Optimizer& optimizer) override;
  void commit() noexcept override;
  void cancel() noexcept override;
  int64_t writes(int64_t client) const override { return in_memory() ? client : -1; }
  void copy_row_to(void* place) noexcept override { copy_ = place; }
  void expect(int64_t client) noexcept override;
  void before_sending(int64_t version) override;
  void sent(int64_t client, int64_t version) noexcept override;
  void fields(Archive& archive) override;
  int64_t nbytes() const override;
  int64_t give_up(const std::vector<int64_t>& lost) override;

 private:
  void hold_rows();
  void plan_terms(int64_t client, int64_t now);
  void plan_bounds();
  void plan_rows();
  void move_aside();
  Direction exchange() const;
  void copy_new_row(const Exchange& row) const;
  void step_along_sum(Runner& runner, const Update& update, const Optimizer& optimizer);
  bool in_memory() const { return rows_ && rows_->shape().data != nullptr; }
  bool ages() const { return setting_.max_delay >= 0; }

  Setting setting_;
  std::shared_ptr<store::RowStore> rows_;
  bool resums_;
  uint64_t seed_;
  float* sum_;
  std::vector<float> shares_, weights_;  // of rows that were heard, and of those in the sum; 0 for the others
  ExactSum total_;
  int64_t heard_ = 0, arrivals_ = 0;
  double row_bound_ = 0.0, peak_ = 0.0;
  // How heavy the sum was since it was last recomputed whole: in this cycle of the resummation, and in the one before.
  double heaviest_total_ = 0.0, heaviest_before_ = 0.0;
  double lightest_ = 0.0, heaviest_ = 0.0;  // of the shares that clients have had
  // ACED:
  std::vector<int64_t> begun_;                             // how fresh a client is
  std::unordered_map<int64_t, std::vector<int64_t>> due_;  // by version: who may leave once it is too old
  int64_t expired_ = 0;                                    // versions below it were looked at
  int64_t due_count_ = 0;
  std::vector<int64_t> back_;  // who was sent a model while out of the sum
  // Planned:
  Contribution given_;
  Outcome outcome_ = Outcome::kKept;
  void* copy_ = nullptr;
  float entering_ = 0.0f, leaving_ = 0.0f, share_ = 0.0f, weighed_ = 0.0f;
  bool direct_ = false;  // this time
  store::Owner aside_;   // the new sum, if it had to be made ahead of the step
  Update mean_;
  store::RowStore::Terms terms_;
  ExactSum total_next_;
  int64_t heard_next_ = 0, expired_next_ = 0;
  double total_value_ = 0.0, row_bound_next_ = 0.0, peak_next_ = 0.0, heaviest_total_next_ = 0.0;
};

}  // namespace fastagg::engine
