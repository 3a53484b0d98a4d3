// What each direction remembers of the arrivals so far, and what the next one makes of it.
//
// An arrival goes through three calls. `plan` may refuse and reserves whatever is needed; nothing that anybody can see
// has changed. `run` calls kernels, which cannot fail. `commit` moves what was planned into place and cannot fail
// either. Where kernels are not called at once they may still come to nothing: `cancel` takes `run` back.
#pragma once

#include <pybind11/pybind11.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../memory/tensors.h"
#include "../plan.h"
#include "exact.h"
#include "scrub.h"
#include "tiers.h"

namespace fastagg::serving {

namespace py = pybind11;
using memory::Vector;

// What is known of an arriving update when the plan is made.
struct Facts {
  int64_t client;               // place of its record; its number, where clients are numbered
  int64_t start;                // the version it was trained from
  int64_t now;                  // the server's
  double gain;                  // clipping
  double weight;                // staleness
  double share;                 // in a mean: the client's number of samples, or 1
  double norm;                  // of the update, after clipping; NaN where nobody measured it
  const float* base = nullptr;  // the model it was trained from, where the rule or a trained model needs it
  bool trained = false;         // the update is the trained model: less `base`
  void* row = nullptr;          // the row that the update became, packed (Rows): then the update itself is not known
  // A leaf's: the sum of so many updates, each of them weighed already, and what they count for in a mean.
  int64_t count = 1;
  double total = -1.0;  // negative: one update, which counts for its share
  double counts_for() const { return total < 0.0 ? share : total; }
};

enum class Outcome { kKept, kStep, kIdle };  // waits; the model steps; the version moves on without a step

// What no element may exceed: then squares are finite, and so are sums of as many as there will ever be.
constexpr int32_t kLargestElementBits = 0x5d800000;  // of 2^60 in fp32
constexpr double kLargestElement = 0x1p60, kLargestSum = 0x1p120, kLargestMoment = 0x1p126, kLargestModel = 3.4028e38;

// Where kernels run: at once, or written down until `launch`. In between `prepare` gets ready what they need. It may
// fail, and then nothing has been done and `forget` drops what was asked for.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual void step(const Update& update, const Direction& direction, const Optimizer& optimizer) = 0;
  virtual void accumulate(const Update& update, const float* acc, double weight, float* out) = 0;
  virtual void recompute_sum(const Rows& rows, const float* weights, float* sum) = 0;
  virtual void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) = 0;
  virtual void settle_rows(const std::vector<RowJob>& jobs, float* sum, int64_t size) = 0;
  virtual void zero(void* memory, int64_t bytes) = 0;
  // Something else that is to be done in order with the kernels, on their stream.
  virtual void also(std::function<void(void* stream)> act) { act(nullptr); }
  virtual bool at_once() const { return true; }  // then they are called without the GIL
  virtual void prepare() {}
  virtual void launch() {}
  virtual void forget() noexcept {}
};

// A bound that a checkpoint holds.
inline double bound_of(const py::handle& given) {
  const double bound = py::cast<double>(given);
  if (!(bound >= 0.0 && bound <= kLargestSum)) throw std::invalid_argument("a bound out of range");
  return bound;
}

class Book {
 public:
  explicit Book(double sign) : sign_(sign) {}
  virtual ~Book() = default;

  // Refuses what this direction never takes.
  virtual void check(py::handle, int64_t, int64_t) const {}
  virtual Outcome plan(const Facts& facts) = 0;
  // `optimizer` steps exactly if `plan` said so.
  virtual void run(Runner& runner, const Update& update, const Optimizer& optimizer) = 0;
  virtual void commit() noexcept = 0;
  virtual void cancel() noexcept {}
  // A client is about to be sent a version, which may fail, and was sent it.
  virtual void before_sending(int64_t) {}
  virtual void sent(int64_t, int64_t) noexcept {}
  // What a step of SGD of this rate does not go beyond, as a bound of the model's elements; negative: it may go
  // further.
  virtual double target(double) const { return -1.0; }
  // The row that the next update of this client will write over; negative: none.
  virtual int64_t writes(int64_t) const { return -1; }
  // A row, without slots, if all that an update changes follows from the encoded row that it becomes: then a journal
  // keeps that row. No size: the update's own numbers are needed.
  virtual Rows coded_row() const { return {}; }
  // After `plan`: `run` puts the new row, packed, here, too.
  virtual void copy_row_to(void*) noexcept {}
  virtual bool immediate() const { return false; }  // a step is made of one update, whose weight scales it

  // Of what was planned: the versions of the updates in the step, and the largest magnitudes that an element of the
  // direction, and of what the book keeps, can have.
  const std::vector<int64_t>& versions() const { return versions_; }
  virtual double bound() const { return bound_; }
  double kept_bound() const { return kept_bound_; }
  // Of what a step adds to the largest magnitude that an element of any version has had.
  virtual double growth(double lr) const { return std::abs(lr) * bound(); }
  virtual bool blends() const { return false; }  // reads the versions that updates were trained from

  virtual py::dict state() const = 0;
  virtual void load(const py::dict& state) = 0;
  virtual int64_t nbytes() const { return 0; }

  double sign() const { return sign_; }
  double model_bound = 0.0;  // of the model's elements, and of versions that are kept

 protected:
  double sign_;  // what an update is multiplied by to be added to the model
  std::vector<int64_t> versions_;
  double bound_ = 0.0, kept_bound_ = 0.0;
};

// Every update is a step of its own; with `blend` towards the client's model (FedAsync).
class Single : public Book {
 public:
  Single(double sign, bool blend) : Book(blend ? 1.0 : sign), blend_(blend) {}
  Outcome plan(const Facts& facts) override;
  void run(Runner& runner, const Update& update, const Optimizer& optimizer) override;
  void commit() noexcept override {}
  bool immediate() const override { return true; }
  double bound() const override;
  double growth(double lr) const override;
  bool blends() const override { return blend_; }
  py::dict state() const override { return {}; }
  void load(const py::dict&) override {}

 private:
  bool blend_;
  Direction direction_;
  double weight_ = 0.0;
};

// A trained model on its way into a sum, less `base`; no base: a difference already.
struct Trained {
  const Update* update;
  const float* base;
  Facts facts;
};

// The sum of the updates so far; the last of a full round never enters it, it goes straight into the step.
class Buffered : public Book {
 public:
  // A negative capacity: however many come until `flush`. `synchronous`: only updates of the current version.
  // `vector()` gives a tensor [d] for the sum; `spare()` one, or None where it would take more memory than there is.
  Buffered(double sign, int64_t capacity, bool synchronous, py::function vector, py::function spare)
      : Book(sign),
        capacity_(capacity),
        synchronous_(synchronous),
        vector_(std::move(vector)),
        spare_(std::move(spare)) {}
  void check(py::handle client, int64_t start, int64_t now) const override;
  Outcome plan(const Facts& facts) override;
  void run(Runner& runner, const Update& update, const Optimizer& optimizer) override;
  void commit() noexcept override;

  int64_t room() const;  // updates until the next step
  double total() const { return total_; }
  const Vector& acc() const { return acc_; }
  // After `load`: a bound of the sum's elements. That of the whole model's sum, where this is a slice.
  void bound_sum(double bound) { acc_bound_ = bound; }

  // Several at once, with nothing to be seen of them before `commit`: those of a round that is complete, in order.
  Outcome plan_round(const std::vector<Facts>& facts, bool steps);
  void plan_numbers(const std::vector<Facts>& facts, bool steps);
  void run_round(Runner& runner, const std::vector<Update>& updates, const Optimizer& optimizer);

  // Trained models, at most `room` of them, folded in together. Says which are finite; if one is not, all is as it was.
  // The step of a full round is along the sum, whose memory the next version may take.
  Outcome plan_fold(const std::vector<Trained>& trained);
  std::vector<bool> run_fold(const std::vector<Trained>& trained);
  void run_flush(Runner& runner, const Update& sum, const Optimizer& optimizer);
  const Vector& sum_after_fold() const { return beside_ ? beside_ : acc_; }
  void commit_fold(bool gives_up_sum) noexcept;

  // A step with what has come; false if nothing has.
  bool plan_flush();

  py::dict state() const override;
  void load(const py::dict& state) override;

 private:
  void reserve(size_t more);

  int64_t capacity_;
  bool synchronous_;
  py::function vector_, spare_;
  Vector acc_, beside_;
  std::vector<int64_t> held_;  // versions of what is in the sum
  double total_ = 0.0, acc_bound_ = 0.0;
  // Planned:
  Outcome outcome_ = Outcome::kKept;
  std::vector<Facts> facts_;
  double total_next_ = 0.0, acc_bound_next_ = 0.0;
};

// A row per client and their sum (ACE); without rows the clients keep them and send differences.
class AllClients : public Book {
 public:
  struct Setting {
    int64_t clients;
    bool full;                // nothing is applied until all clients have been heard
    bool direct;              // the sum is recomputed at every arrival
    int64_t max_delay = -1;   // ACED: how many versions a row's information may be old; negative: for ever
    bool by_dispatch = true;  // ACED: as fresh as the last model the client was sent, or as its row
  };
  // Rows are in memory, with a scrub unless `direct`, or on `tiers`, which has its own; or there are none.
  AllClients(double sign, const Setting& setting, std::optional<Rows> rows, uint64_t seed, float* sum, Scrub* scrub);
  AllClients(double sign, const Setting& setting, std::shared_ptr<Tiers> tiers, uint64_t seed, float* sum);
  Outcome plan(const Facts& facts) override;
  void run(Runner& runner, const Update& update, const Optimizer& optimizer) override;
  void commit() noexcept override;
  void cancel() noexcept override;
  int64_t writes(int64_t client) const override { return rows_ ? client : -1; }
  Rows coded_row() const override;
  void copy_row_to(void* place) noexcept override { copy_ = place; }
  void before_sending(int64_t version) override;
  void sent(int64_t client, int64_t version) noexcept override;
  py::dict state() const override;
  void load(const py::dict& state) override;
  int64_t nbytes() const override;

 private:
  void plan_terms(int64_t client, int64_t now);
  bool plan_row();
  void give_up(int64_t client);
  bool keeps_rows() const { return rows_ || tiers_; }

  Setting setting_;
  std::optional<Rows> rows_;
  std::shared_ptr<Tiers> tiers_;
  int format_ = kPlainRows;
  uint64_t seed_;
  float* sum_;
  Scrub* scrub_;
  std::vector<float> shares_, weights_;  // of rows that were heard, and of those in the sum; 0 for the others
  ExactSum total_;
  int64_t heard_ = 0, arrivals_ = 0;
  double row_bound_ = 0.0, peak_ = 0.0;
  // ACED:
  std::vector<int64_t> begun_;                             // how fresh a client is
  std::unordered_map<int64_t, std::vector<int64_t>> due_;  // by version: who may leave once it is too old
  int64_t expired_ = 0;                                    // versions below it were looked at
  int64_t due_count_ = 0;
  std::vector<int64_t> back_;  // who was sent a model while out of the sum
  // Planned:
  Facts facts_;
  Outcome outcome_ = Outcome::kKept;
  void* copy_ = nullptr;
  float entering_ = 0.0f, leaving_ = 0.0f, share_ = 0.0f, weighed_ = 0.0f;
  Update mean_;
  std::vector<std::pair<int64_t, float>> terms_;
  ExactSum total_next_;
  int64_t heard_next_ = 0, expired_next_ = 0;
  double total_value_ = 0.0, row_bound_next_ = 0.0, peak_next_ = 0.0;
};

// Buffered updates, calibrated by what each client sent before (CA2FL). Rows of the start of the round stay where they
// are until the step; those that arrive in it go to spare slots, and the step makes them the clients' own without
// moving anything.
class Calibrated : public Book {
 public:
  struct Setting {
    int64_t clients, capacity;
    bool from_start;  // a client that returns in a round is calibrated against its row at the start of it
  };
  Calibrated(double sign, const Setting& setting, const Rows& rows, uint64_t seed, float* sum, float* acc,
             Scrub* scrub);
  Outcome plan(const Facts& facts) override;
  void run(Runner& runner, const Update& update, const Optimizer& optimizer) override;
  void commit() noexcept override;
  void cancel() noexcept override;
  int64_t writes(int64_t client) const override;
  py::dict state() const override;
  void load(const py::dict& state) override;
  int64_t nbytes() const override;

 private:
  struct Fresh {
    int64_t client, slot;
    double share;
  };
  Fresh* fresh_of(int64_t client);
  double largest_row() const { return kLargestElement / (1.0 + 2.0 * static_cast<double>(setting_.capacity)); }

  Setting setting_;
  Rows rows_;
  uint64_t seed_;
  float *sum_, *acc_;
  Scrub* scrub_;
  std::vector<int32_t> slots_;  // client -> its row at the start of the round; negative: none
  std::vector<Fresh> fresh_;    // rows of this round, in the order of the clients' first arrivals
  std::vector<int32_t> free_;
  std::vector<float> weights_;  // of slots in the sum
  std::vector<int64_t> held_;
  double total_ = 0.0, row_bound_ = 0.0;
  int64_t arrivals_ = 0;
  // Planned:
  Facts facts_;
  Outcome outcome_ = Outcome::kKept;
  int64_t read_ = -1, write_ = -1;
  bool known_ = false;
  std::vector<std::pair<int64_t, float>> terms_;
  double divisor_ = 1.0, row_bound_next_ = 0.0;
};

}  // namespace fastagg::serving
