// One answer on its way into a server, from the binding to the log, or the end of a round. Every public method that
// takes answers fills this struct. What comes out of it is a receipt.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "../client_id.h"
#include "../log/operation.h"
#include "../plan.h"
#include "../store/vector.h"
#include "contribution.h"
#include "reported.h"

namespace fastagg::engine {

struct Receipt {
  bool applied = false;
  int64_t version = 0, delay = 0;
  int64_t task = 0;                                             // the id of the task that was answered; 0: none
  double step_size = std::numeric_limits<double>::quiet_NaN();  // NaN: no step
  double norm = 0.0, weight = 0.0;
  uint64_t sequence = 0;  // of its record in the log; 0: none
};

// The contents of an answer, and where they lie.
struct Numbers {
  enum AnswerKind {
    kUpdate,  // a delta or a gradient
    kModel,   // a trained model, which is taken less `base`; or the difference itself, without one
    kSum,     // of several clients' updates, each of them weighed already
  };
  AnswerKind kind = kUpdate;
  // The numbers, and what keeps their memory alive. Their owner may write to them at any time, unless `is_private`.
  Update update;
  store::Owner owner;
  bool is_private = false;
  bool still = false;  // its owner does not write to them meanwhile, so that they may be read twice
  store::Owner copy;   // the engine's own, once it has read the numbers; `update` is in it then
  store::Vector base;  // none: there is none

  int64_t count = 1;                   // kSum: how many updates it is made of,
  double total = -1.0;                 // and what they count for in a mean
  std::vector<ClientId> participants;  // whose they are, if the leaf says it

  std::shared_ptr<const ReportedStatistics> reported;  // statistics
  store::Vector control;            // what came besides the update (a change of a control variate), fp32
  int64_t control_size = 0;         // of so many numbers
  store::Owner extra;               // whatever else the extension understands
  std::shared_ptr<log::Blob> blob;  // the file that the update was streamed into
  Update on_host;                   // of an update on a device: a copy for the log,
  store::Owner on_host_owner;       // and its owner
  bool in_host = false;             // the update lies in host memory although kernels run on a device
};

struct Answer : Numbers {
  ClientId client;
  int64_t version = INT64_MIN;                                // kLastSent: the one that the client was sent last
  std::optional<uint64_t> incarnation;                        // if the sender states it
  int64_t task = 0;                                           // its id; 0: not given
  int64_t offset = -1;                                        // in the log that it comes from; -1: not given
  double samples = std::numeric_limits<double>::quiet_NaN();  // NaN: not given
  const log::RecordFields* decided = nullptr;                 // in a recovery: the outcome that was
  Receipt receipt;                                            // out
};

}  // namespace fastagg::engine
