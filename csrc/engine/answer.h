// One answer on its way through a server, from the binding to the log. Every public method that takes answers fills
// an Answer. The Answer's receipt is the result.
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
  int64_t task = 0;                                             // the id of the answered task; 0: none
  double step_size = std::numeric_limits<double>::quiet_NaN();  // NaN: no step
  double norm = 0.0, weight = 0.0;
  uint64_t sequence = 0;  // of the answer's record in the log; 0: none
};

// The contents of an answer: its numbers and their owners.
struct Numbers {
  enum AnswerKind {
    kUpdate,  // a delta or a gradient
    kModel,   // a trained model, from which `base` is subtracted; without `base`, the difference itself
    kSum,     // the sum of several clients' updates, which are weighted already
  };
  AnswerKind kind = kUpdate;
  // The numbers, and the owner that keeps their memory alive. The sender may write to that memory at any time, unless
  // `is_private`.
  Update update;
  store::Owner owner;
  bool is_private = false;
  bool still = false;  // whether nobody writes to the numbers during the call, so that they may be read twice
  store::Owner copy;   // the engine's own copy of the numbers, once it is made; `update` then points into it
  store::Vector base;  // the model that a trained model began with; empty: none

  int64_t count = 1;                   // kSum: the number of its updates,
  double total = -1.0;                 // and the sum of their weights in a mean
  std::vector<ClientId> participants;  // the clients of a sum's updates, if the leaf names them

  std::shared_ptr<const ReportedStatistics> reported;  // BatchNorm's statistics
  store::Vector control;            // vectors sent besides the update (a change of a control variate), fp32
  int64_t control_size = 0;         // the number of their elements
  store::Owner extra;               // anything else that the extension understands
  std::shared_ptr<log::Blob> blob;  // the file that the update was streamed into
  Update on_host;                   // if the update is on a device: a copy for the log,
  store::Owner on_host_owner;       // and its owner
  bool in_host = false;             // whether the update lies in host memory although kernels run on a device
};

struct Answer : Numbers {
  ClientId client;
  int64_t version = INT64_MIN;          // kLastSent: the version that the client was sent last
  std::optional<uint64_t> incarnation;  // the task's incarnation, if the sender states it
  int64_t task = 0;                     // the task's id; 0: not given
  int64_t offset = -1;                  // the offset in the queue that the answer was read from; -1: not given
  double samples = std::numeric_limits<double>::quiet_NaN();  // NaN: not given
  const log::RecordFields* decided = nullptr;                 // in a recovery: the recorded outcome
  Receipt receipt;                                            // the result
};

}  // namespace fastagg::engine
