// Implements a server's operations (engine.h), also for a recovery, which executes the operations of a log again.
#include "engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "../cpu/cpu.h"
#include "../math/optimizers.h"
#include "row_weights.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kOverdueAtATime = 8;  // the most other clients' tasks that a sending ends, so that no call is slow

log::Operation operation_of(log::OperationKind kind, const ClientId& client, int64_t version) {
  log::Operation made;
  made.kind = kind, made.client = client, made.version = version;
  return made;
}

}  // namespace

// -- operations ------------------------------------------------------------------------------------------------------

Model::SentModel Engine::sent_now(int format) {
  const double rate = optimizer.ahead();
  if (rate == 0.0 && format < 0) return {model.current, nullptr};
  if (const auto entry = model.sent.find(format); entry != model.sent.end()) return entry->second;
  const bool exact = format < 0 && model.current.dtype == kFloat32;
  const auto fits = [&] {
    const double bound = model.bound + std::abs(rate) * optimizer.bounds.m;
    return (exact ? 1.0 : kRounded) * bound <= std::min(kLargestModel, settings.largest_model);
  };
  if (!fits()) measure();
  if (!fits())
    throw Refusal(Why::kTooLarge, std::string(format < 0 ? "look_ahead" : "format") +
                                      ": the model that is sent could leave the range of its type" +
                                      (rate == 0.0 ? "" : "; set a smaller lr"));
  if (format < 0) return model.sent[format] = {ahead_now(), nullptr};
  if (place.device)
    throw Refusal(Why::kSetting, "format: this server's model is on a CUDA device, and only one on the CPU is rounded");
  if (settings.keeps_versions)
    throw Refusal(Why::kSetting,
                  "format: this rule compares an update with the version that was sent, and its client had a rounded "
                  "one; send it as it is");
  const store::Vector from = sent_now(kAsItIs).model;
  const bool same = format >= 0 && wire_facts(format).row == kHalfRows &&
                    from.dtype == kBFloat16;  // the version already has the type of this format
  Model::SentModel made{same ? from : place.memory->vector(settings.size),
                        store::Encoded::make(format, 0, settings.size, 0)};
  cpu::encode(store::update_of(from, settings.size), *made.encoded,
              {optimizer.seed(), static_cast<uint64_t>(ledger.now), kDownloads});
  if (!same) cpu::accumulate(made.encoded->update(), nullptr, 1.0f, made.model.data);
  return model.sent[format] = made;
}

// Returns the look-ahead: the current model plus lr * beta1 times the momentum.
store::Vector Engine::ahead_now() {
  const double rate = optimizer.ahead();
  const store::Vector made = place.memory->vector(settings.size, model.current.dtype);
  Update momentum;
  momentum.add(optimizer.m(), settings.size, kFloat32);
  Optimizer moves{place_in<Sgd>(Optimizers{}), {}, {}};
  set_model(moves, model.current, made, {optimizer.seed(), static_cast<uint64_t>(ledger.now), kLookAheads});
  moves.hyper.lr = static_cast<float>(rate);
  const InOrder order(place);
  place.runner->step(momentum, {}, moves);
  if (!place.device) return made;
  place.device->hold(made.owner);
  place.device->launch();
  return made;
}

int64_t Engine::apply(const log::Operation& operation) {
  records.check();
  log::RecordList record = records.of(operation);
  int64_t ended = 0;
  switch (operation.kind) {
    case log::kForget:
      if (operation.version < 0) {
        ledger.forget(operation.client);
      } else {
        const Ledger::TaskReference task = ledger.find(operation.client, operation.version);
        ledger.close(task.client, task.version, Ids::unanswered(task.version, Ids::kGivenUp));
      }
      break;
    case log::kExpire: ended = ledger.expire_before(operation.version); break;
    case log::kRate:
      if (!std::isfinite(operation.rate)) throw Refusal(Why::kDamaged, "a learning rate that is no number");
      optimizer.settings.lr = operation.rate;
      model.sent.clear();
      break;
    case log::kIncarnation: ledger.begin_incarnation(operation.version, operation.incarnation); break;
    default: throw Refusal(Why::kDamaged, "an operation that cannot be executed here");
  }
  records.add(std::move(record));
  return ended;
}

Task Engine::send(log::Operation operation, int format) {
  records.check();
  const int64_t now = ledger.now;
  const bool hands_on = operation.kind == log::kHandOn;
  if (!hands_on && operation.version != now)
    throw Refusal(Why::kDamaged, "the server sent version " + std::to_string(operation.version) +
                                     " then, but sends version " + std::to_string(now) + " now");
  const ClientId& client = operation.client;
  const store::Vector kept = hands_on ? ledger.kept.of(operation.version) : model.current;
  if (hands_on && (operation.version < 0 || operation.version > now || (settings.keeps_versions && !kept)))
    throw Refusal(Why::kDamaged, "a task of version " + std::to_string(operation.version) + ", which nobody has");
  const Model::SentModel sent = hands_on ? Model::SentModel{model.current, nullptr} : sent_now(format);
  Task task{client,
            operation.version,
            ledger.roster.local_steps(client, settings.local_steps),
            ledger.incarnations.of(operation.version),
            operation.task == 0 ? ledger.next_id(client, operation.version) : operation.task,
            sent.model,
            sent.encoded,
            model.state};
  const DirectionState::Traits& is = direction->is;
  if (is.privacy) ledger.roster.check_alone(client, operation.version);
  if (ledger.participation.policy.limits()) ledger.participation.check(client, ledger.steps, ledger.now);
  if (is.ages) is.ages->before_sending(operation.version);
  operation.task = task.id;
  log::RecordList made = records.of(operation);
  const int64_t at = ledger.send(client, operation.version, task.local_steps, kept, task.id);
  if (is.ages) is.ages->sent(at, operation.version);
  model.shared = model.shared || sent.model.data == model.current.data;
  records.add(std::move(made));
  return task;
}

int64_t Engine::end_overdue(int64_t limit) {
  const int64_t before = ledger.leases.expired;
  for (int64_t seen = 0; seen != limit; ++seen) {
    const auto overdue = ledger.overdue();
    if (!overdue) break;
    log::RecordList task, client;
    if (overdue->ends) task = records.of(operation_of(log::kForget, overdue->client, overdue->version));
    if (overdue->forgets) client = records.of(operation_of(log::kForget, overdue->client, -1));
    ledger.pass(*overdue);
    records.add(std::move(task));
    records.add(std::move(client));
  }
  return ledger.leases.expired - before;
}

void Engine::make_room(const ClientId& client) {
  records.check();
  ledger.roster.clients.check(client);
  end_overdue(ledger.roster.known < ledger.leases.limits.clients ? kOverdueAtATime : -1);
  const Roster& roster = ledger.roster;
  const int64_t at = roster.clients.find(client);
  if (at < 0 || !ledger.leases.limits.expires()) return;
  for (const int64_t version : roster.owed(at)) {
    if (!ledger.leases.is_over(*roster.tasks.find(at, version), ledger.leases.time(), ledger.now)) continue;
    log::RecordList ended = records.of(operation_of(log::kForget, client, version));
    ledger.end_late(at, version);
    records.add(std::move(ended));
  }
}

Task Engine::dispatch(const ClientId& client, int format) {
  const EngineCall locked(lock);
  follow();
  make_room(client);
  return send(operation_of(log::kDispatch, client, ledger.now), format);
}

Task Engine::hand_on(const ClientId& from, int64_t version, int64_t task, const ClientId& to) {
  const EngineCall locked(lock);
  make_room(to);
  ledger.find(from, version, task);
  return send(operation_of(log::kHandOn, to, version));
}

void Engine::forget(const ClientId& client, std::optional<int64_t> version) {
  const EngineCall locked(lock);
  apply(operation_of(log::kForget, client, version ? ledger.find(client, *version).version : -1));
}

int64_t Engine::expire(std::optional<int64_t> before) {
  const EngineCall locked(lock);
  records.check();
  const int64_t ended = end_overdue(-1);
  if (!before) return ended;
  return ended + apply(operation_of(log::kExpire, {}, *before));
}

void Engine::set_rate(double lr) {
  const EngineCall locked(lock);
  log::Operation operation = operation_of(log::kRate, {}, -1);
  operation.rate = lr;
  apply(operation);
}

void Engine::begin_incarnation(int64_t version, uint64_t number) {
  const EngineCall locked(lock);
  log::Operation operation = operation_of(log::kIncarnation, {}, version);
  operation.incarnation = number;
  apply(operation);
}

void Engine::limit(const Limits& limits) {
  const EngineCall locked(lock);
  ledger.leases.limits = limits;
  ledger.renew();
  enough_since = std::nan("");
  is_due();  // starts the round's clock if a restored round has enough updates
}

// -- answers ---------------------------------------------------------------------------------------------------------

Engine::Result Engine::receive(Answer* answers, size_t count) {
  const EngineCall locked(lock, true);
  Result result;
  last_misformed = nullptr;
  try {
    while (result.done < count) {
      Answer* const next = answers + result.done;
      const size_t taken = take(next, count - result.done);
      result.done += taken;
      if (Sums* const sums = direction->is.sums; sums && !told_majority_)
        if (const int64_t client = std::exchange(sums->majority, -1);
            client >= 0 && ledger.roster.tasks.is_known(client)) {
          result.majority = ledger.roster.clients.at(client);
          told_majority_ = true;
        }
      if (const Answer* const answer = std::exchange(last_misformed, nullptr); answer && !told_misformed_) {
        result.misformed = answer->client;
        told_misformed_ = true;
      }
      is_due();  // starts the round's clock if the round has enough updates now
      for (size_t i = 0; i < taken; ++i)
        next[i].copy.reset();  // so that the next answer is copied to the same memory, which is still in a cache
    }
  } catch (const Refusal& refused) {
    result.refused = refused;
  } catch (...) {
    result.failed = std::current_exception();
  }
  return result;
}

// Executes the first answers: as many as one pass can take, at least one. Returns how many were executed.
size_t Engine::take(Answer* answers, size_t count) {
  for (size_t group = BatchTransaction::capacity(*this, answers, count); group > 0;) {
    BatchTransaction batch(*this, answers, group);
    if (batch.execute()) return batch.fit();
    group = batch.fit();
  }
  // If the round has no room for this sum (`closes_before`), the round ends before the sum is added.
  const Sums* const sums = direction->is.sums;
  if (answers->kind == Answer::kSum && sums && sums->closes_before(answers->count)) {
    AnswerTransaction(*this, *answers).check();
    Receipt receipt;
    RoundEndTransaction(*this, receipt).execute();
  }
  AnswerTransaction(*this, *answers).execute();
  return 1;
}

bool Engine::is_due() {
  const Sums* const sums = direction->is.sums;
  const double grace = sums ? sums->grace(0) : HUGE_VAL;
  if (!(grace < HUGE_VAL)) return false;
  const double time = ledger.leases.own_time();
  if (std::isnan(enough_since)) enough_since = time;
  return time - enough_since >= grace;
}

bool Engine::close_round(Receipt* receipt, bool if_due) {
  const EngineCall locked(lock);
  if (!settings.closes_early || (if_due && !is_due())) return false;
  try {
    return RoundEndTransaction(*this, *receipt).execute();
  } catch (const Refusal& refused) {
    if (!if_due || refused.why != Why::kTooLarge) throw;
    return false;  // with `if_due` a step that is too large is no error: the round stays open
  }
}

// -- recovery --------------------------------------------------------------------------------------------------------

void Engine::execute(const log::Operation& operation, Answer* answer) {
  const EngineCall locked(lock);
  Receipt receipt;
  switch (operation.kind) {
    case log::kCloseRound:
      if (!settings.closes_early)
        throw Refusal(Why::kDamaged, "the end of a round, and this server's rule has no rounds");
      if (!RoundEndTransaction(*this, receipt, &operation).execute())
        throw Refusal(Why::kDamaged, "the end of a round in which nothing had come");
      return;
    case log::kAnswer: {
      const int64_t before = misformed;
      AnswerTransaction(*this, *answer).execute();
      misformed = before, last_misformed = nullptr;  // a misformed answer was reported when it first came
      return;
    }
    case log::kDispatch:
    case log::kHandOn: send(operation); return;
    default: apply(operation);
  }
}

}  // namespace fastagg::engine
