// A client's answer to a task, as the bindings pass it to the engine. All public methods that take answers pass an
// Answer for each client's answer. The engine writes the result to the Answer's receipt.
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
  double step_size = std::numeric_limits<double>::quiet_NaN();  // the direction's factor in the step; NaN: no step
  double norm = 0.0, weight = 0.0;
  uint64_t sequence = 0;  // the number of the answer's record in the log; 0: no record
};

// The contents of an answer, and the owners of its memory.
struct Numbers {
  enum AnswerKind {
    kUpdate,  // a difference of models, or a gradient
    kModel,   // a trained model, from which the engine subtracts `base`; if `base` is empty: already the difference
    kSum,     // a leaf server's sum of its clients' updates, each already multiplied by its weight
  };
  AnswerKind kind = kUpdate;
  // The update's elements, and the owner that keeps their memory alive. If `is_private` is false, the sender may write
  // to that memory at any time.
  Update update;
  store::Owner owner;
  bool is_private = false;
  bool still = false;  // whether nobody writes to `update` during the call, so that two reads give equal elements
  store::Owner copy;   // the engine's own copy of the elements, to which `update` then points; null: not copied
  store::Vector base;  // for kModel: the model from which the client began to train

  int64_t count = 1;                   // for kSum: the number of updates in the sum
  double total = -1.0;                 // for kSum: the sum of the updates' shares (contribution.h); otherwise < 0
  std::vector<ClientId> participants;  // for kSum: the clients of the updates; empty: the leaf server names none

  std::shared_ptr<const ReportedStatistics> reported;  // the client's BatchNorm statistics; null: none
  store::Vector control;            // other fp32 vectors of the client, such as a change of its control variate
  int64_t control_size = 0;         // the number of elements of `control`
  store::Owner extra;               // other data of the client, in a form that only the extension knows
  std::shared_ptr<log::Blob> blob;  // the file to which the update was streamed; null: none
  Update on_host;                   // for a server on a device: the update in host memory, for the log
  store::Owner on_host_owner;       // the owner of the memory of `on_host`
  bool in_host = false;             // whether `update` is in host memory although kernels run on a device
};

struct Answer : Numbers {
  ClientId client;
  int64_t version = INT64_MIN;          // the task's version; kLastSent: the version that the client was sent last
  std::optional<uint64_t> incarnation;  // the incarnation of the task's version; none: not given
  int64_t task = 0;                     // the task's id; 0: not given
  int64_t offset = -1;                  // the answer's offset in the queue from which it was read; -1: not given
  double samples = std::numeric_limits<double>::quiet_NaN();  // number of samples or tokens; NaN: not given
  const log::RecordFields* decided = nullptr;                 // in a recovery: the recorded outcome; otherwise null
  Receipt receipt;
};

}  // namespace fastagg::engine
