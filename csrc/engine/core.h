// The state of a server. Operations (engine.h) and transactions (transaction.h) use the state while they hold the lock.
#pragma once

#include <memory>
#include <vector>

#include "../store/row_cut.h"
#include "direction.h"
#include "extension.h"
#include "inspector.h"
#include "ledger.h"
#include "model.h"
#include "optimizer.h"
#include "privacy.h"
#include "records.h"
#include "staleness.h"
#include "transaction.h"

namespace fastagg::engine {

struct Settings {
  int64_t size = 0;                      // the number of elements of the model's vector
  int64_t clients = -1;                  // the number of clients, with the ids 0..clients-1; negative: any id
  double clip_norm = 0.0;                // an update with a larger norm is clipped to this norm; 0: no clipping
  bool weighs_by_samples = false;        // true: an update's weight in a mean is its number of samples; false: it is 1
  double max_samples = kHeaviest;        // a larger number of samples counts as this number
  double largest_model = kLargestModel;  // the largest finite number of the model's own type
  int32_t local_steps = 0;               // the default number of local steps of a task; 0: clients get no number
  bool keeps_versions = false;           // whether a version's model is kept while a task of that version is open
  bool closes_early = false;             // whether `close_round` ends rounds that are not full; false: it has no effect
  bool folds = false;                    // whether several answers may be added in one pass
  Participation::Policy participation;
  Staleness staleness;
};

class Core {
 public:
  Core(const Settings& chosen, std::shared_ptr<DirectionState> along, const OptimizerSettings& steps, uint64_t seed,
       Place where, std::shared_ptr<Extension> language, store::Vector first);
  ~Core() {
    if (place.device) place.device->settle();
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  Records records;  // writes a record of every operation, once a log is attached
  const Settings settings;
  const std::shared_ptr<DirectionState> direction;
  OptimizerState optimizer;
  Ledger ledger;
  const Place place;
  const std::unique_ptr<Inspector> inspector;
  const std::shared_ptr<Extension> extension;  // null: the rule needs none
  std::shared_ptr<store::RowCut> cut;          // the rows of a running checkpoint; null: none
  Model model;
  double enough_since = std::numeric_limits<double>::quiet_NaN();  // the time, by the leases' clock, when the round got
                                                                   // enough updates; NaN: not yet
  TransactionScratch scratch;
  int64_t misformed = 0;                   // how many counted answers seemed to be of another kind than stated
  const Answer* last_misformed = nullptr;  // the last such answer, if it is not reported yet; null: none

  // Returns the norm to which larger updates are clipped. 0: no clipping.
  double clip_norm() const { return direction->is.privacy ? direction->is.privacy->clip() : settings.clip_norm; }
  bool steps_in_python() const { return extension && extension->asks.step; }
  bool prepares(const Answer& answer) const {
    return extension && (extension->asks.prepare || answer.control || answer.extra);
  }
  // Finds the task that an answer refers to. Throws Refusal: kUnknownClient, kUnknownVersion, kStaleIncarnation,
  // kAlreadyCounted, kOtherClient.
  Ledger::TaskReference find(const Answer& answer) const;
  // Makes later work on the caller's stream wait for the device's work so far.
  void follow() const {
    if (place.device) place.device->follow();
  }
  void measure();  // measures the values for model.bound, direction->model_bound and optimizer.bounds
};

}  // namespace fastagg::engine
