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
  int64_t size = 0;                      // the elements of the model's vector
  int64_t clients = -1;                  // ids are 0..clients-1; negative: any id
  double clip_norm = 0.0;                // the largest norm of an update; 0: no clipping
  bool weighs_by_samples = false;        // whether an update's weight in a mean is its client's number of samples
  double max_samples = kHeaviest;        // a larger number of samples counts as this number
  double largest_model = kLargestModel;  // the largest number in the model's own types
  int32_t local_steps = 0;               // the local steps of a task by default; 0: clients are not told
  bool keeps_versions = false;           // whether every version that a client may answer is kept
  bool closes_early = false;             // whether `close_round` steps along the updates so far
  bool folds = false;                    // whether several trained models may be added in one pass
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
  const std::shared_ptr<Extension> extension;  // may be null
  std::shared_ptr<store::RowCut> cut;
  Model model;
  double enough_since =
      std::numeric_limits<double>::quiet_NaN();  // when the round had enough updates, by the ledger's clock
  TransactionScratch scratch;
  int64_t misformed = 0;                   // the number of counted answers that looked like another form than stated
  const Answer* last_misformed = nullptr;  // such an answer of the transaction that has just ended; null: none

  // The norm to which updates are clipped. 0: no clipping.
  double clip_norm() const { return direction->is.privacy ? direction->is.privacy->clip() : settings.clip_norm; }
  bool steps_in_python() const { return extension && extension->asks.step; }
  bool prepares(const Answer& answer) const {
    return extension && (extension->asks.prepare || answer.control || answer.extra);
  }
  // Finds the task that an answer refers to. Throws Refusal: kUnknownClient, kUnknownVersion, kStaleIncarnation,
  // kAlreadyCounted, kOtherClient.
  Ledger::TaskReference find(const Answer& answer) const;
  // Makes the caller's stream wait for all of the device's work so far.
  void follow() const {
    if (place.device) place.device->follow();
  }
  void measure();  // computes new bounds from the elements themselves
};

}  // namespace fastagg::engine
