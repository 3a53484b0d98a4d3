// A server's operations: what starts a change, and what executes it again.
#include "engine.h"

#include <algorithm>
#include <cmath>

#include "in_order.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kOverdueAtATime = 8;  // limits the time of one call

}  // namespace

Engine::Engine(const Settings& settings, std::shared_ptr<DirectionState> direction, const OptimizerSettings& optimizer,
               uint64_t seed, std::shared_ptr<store::Memory> memory, std::shared_ptr<Runner> runner,
               std::shared_ptr<Extension> extension, store::Vector model)
    : settings_(settings),
      direction_(std::move(direction)),
      optimizer_(optimizer, extension && extension->asks.step ? 0 : settings.size, seed, memory),
      ledger_(settings.clients, settings.keeps_versions),
      memory_(std::move(memory)),
      runner_(std::move(runner)),
      extension_(std::move(extension)),
      model_(std::move(model)) {
  if (runner_->at_once()) return;
  const InOrder order(*runner_);  // the caller has made the model on its stream
  if (!own_step())
    runner_->load(optimizer_.planned(0, optimizer_.settings.lr, model_.data, model_.data),
                  direction_->is.rows ? direction_->is.rows->format : -1);
}

Engine::~Engine() { runner_->settle(); }

// -- operations ------------------------------------------------------------------------------------------------------

// Refuses a call that could not be acknowledged.
void Engine::check_log() const {
  if (log_) log_->check();
}

log::Queued Engine::note(const log::Operation& operation) const {
  return log_ ? log::record_of(*log_, operation) : log::Queued{};
}

void Engine::add(log::Queued note) noexcept {
  if (note) log_->push(std::move(note));
}

store::Vector Engine::kept_now() const {
  if (!settings_.keeps_versions) return {};
  return model_;
}

// What an operation does that is no answer.
Engine::Applied Engine::apply(const log::Operation& operation) {
  check_log();
  Applied found;
  switch (operation.kind) {
    case log::kDispatch:
    case log::kHandOn: found.task = send(operation); break;
    case log::kForget: {
      log::Queued made = note(operation);
      if (operation.version < 0) {
        ledger_.forget(operation.client);
      } else {
        const Ledger::Found task = ledger_.find(operation.client, operation.version);
        ledger_.close(task.client, task.version);
      }
      add(std::move(made));
      break;
    }
    case log::kExpire: {
      log::Queued made = note(operation);
      found.ended = ledger_.expire_before(operation.version);
      add(std::move(made));
      break;
    }
    case log::kRate: {
      if (!std::isfinite(operation.rate)) throw Refusal(Why::kDamaged, "a learning rate that is no number");
      log::Queued made = note(operation);
      optimizer_.settings.lr = operation.rate;
      add(std::move(made));
      break;
    }
    case log::kIncarnation: {
      log::Queued made = note(operation);
      ledger_.begin_incarnation(operation.version, operation.incarnation);
      add(std::move(made));
      break;
    }
    default: throw Refusal(Why::kDamaged, "an operation that cannot be executed here");
  }
  return found;
}

Task Engine::send(const log::Operation& operation) {
  const int64_t now = ledger_.now;
  const bool hands_on = operation.kind == log::kHandOn;
  if (!hands_on && operation.version != now)
    throw Refusal(Why::kDamaged, "the server sent version " + std::to_string(operation.version) +
                                     " then, but sends version " + std::to_string(now) + " now");
  const ClientId& client = operation.client;
  const store::Vector kept = hands_on ? ledger_.kept(operation.version) : kept_now();
  if (hands_on && (operation.version < 0 || operation.version > now || (settings_.keeps_versions && !kept)))
    throw Refusal(Why::kDamaged, "a task of version " + std::to_string(operation.version) + ", which nobody has");
  Task task{client,
            operation.version,
            ledger_.local_steps(client, settings_.local_steps),
            ledger_.incarnation_of(operation.version),
            operation.task == 0 ? ledger_.next_id(client, operation.version) : operation.task,
            model_,
            state_};
  const DirectionState::Traits& is = direction_->is;
  if (is.ages) is.ages->before_sending(operation.version);
  log::Operation named = operation;
  named.task = task.id;
  log::Queued made = note(named);
  const int64_t place = ledger_.send(client, operation.version, task.local_steps, kept, task.id);
  if (is.rows) is.rows->expect(place);
  if (is.ages) is.ages->sent(place, operation.version);
  shared_ = true;
  add(std::move(made));
  return task;
}

int64_t Engine::end_overdue(int64_t most) {
  const int64_t before = ledger_.expired();
  for (int64_t seen = 0; seen != most; ++seen) {
    const auto one = ledger_.overdue();
    if (!one) break;
    log::Queued task, client;
    log::Operation ended;
    ended.kind = log::kForget, ended.client = one->client, ended.version = one->version;
    if (one->ends) task = note(ended);
    ended.version = -1;
    if (one->forgets) client = note(ended);
    ledger_.pass(*one);
    add(std::move(task));
    add(std::move(client));
  }
  return ledger_.expired() - before;
}

Task Engine::dispatch(const ClientId& client) {
  const Inside inside(gate);
  check_log();
  follow();
  ledger_.check(client);
  end_overdue(kOverdueAtATime);
  log::Operation operation;
  operation.kind = log::kDispatch, operation.client = client, operation.version = ledger_.now;
  return *apply(operation).task;
}

Task Engine::hand_on(const ClientId& from, int64_t version, const ClientId& to) {
  const Inside inside(gate);
  ledger_.find(from, version);
  log::Operation operation;
  operation.kind = log::kHandOn, operation.client = to, operation.version = version;
  return *apply(operation).task;
}

void Engine::forget(const ClientId& client, std::optional<int64_t> version) {
  const Inside inside(gate);
  log::Operation operation;
  operation.kind = log::kForget, operation.client = client;
  operation.version = version ? ledger_.find(client, *version).version : -1;
  apply(operation);
}

int64_t Engine::expire(std::optional<int64_t> before) {
  const Inside inside(gate);
  check_log();
  const int64_t ended = end_overdue(-1);
  if (!before) return ended;
  log::Operation operation;
  operation.kind = log::kExpire, operation.version = *before;
  return ended + apply(operation).ended;
}

void Engine::set_rate(double lr) {
  const Inside inside(gate);
  log::Operation operation;
  operation.kind = log::kRate, operation.rate = lr;
  apply(operation);
}

// Rows on a disk are damaged: their clients begin anew. The sum is made anew from the other rows. If one of these turns
// out to be lost, too, nothing has changed yet.
void Engine::give_up(std::vector<int64_t> slots) {
  check_log();
  if (!direction_->is.rows) throw Refusal(Why::kDamaged, "rows on a disk were lost, and this server has none");
  for (int64_t also = 0; also >= 0;) {
    log::Operation operation;
    operation.kind = log::kLost, operation.slots = slots;
    log::Queued made = note(operation);
    also = direction_->is.rows->give_up(slots);
    if (also < 0) {
      add(std::move(made));
    } else {
      slots.push_back(also);
    }
  }
}

void Engine::begin_incarnation(int64_t version, uint64_t number) {
  const Inside inside(gate);
  log::Operation operation;
  operation.kind = log::kIncarnation, operation.version = version, operation.incarnation = number;
  apply(operation);
}

void Engine::limit(const Limits& limits) {
  const Inside inside(gate);
  ledger_.limits = limits;
  ledger_.renew();
}

// -- answers ---------------------------------------------------------------------------------------------------------

Engine::Result Engine::receive(Answer* answers, size_t count) {
  const Inside inside(gate, true);
  Result result;
  while (result.done < count) {
    Answer* const next = answers + result.done;
    size_t group = together(next, count - result.done);
    try {
      size_t taken = 0;
      while (group > 0 && taken == 0) {
        taken = step(next, group, true);
        group = fit_;
      }
      if (taken == 0) close_before(*next);
      if (taken == 0) taken = step(next, 1, false);
      result.done += taken;
      is_due();  // the round's time begins
      for (size_t i = 0; i < taken; ++i)
        next[i].copy.reset();  // so that the next one is copied to memory that is in a cache
    } catch (const Refusal& refused) {
      result.refused = refused;
      return result;
    } catch (...) {
      result.failed = std::current_exception();
      return result;
    }
  }
  return result;
}

// Ends a round that has no room for a sum, if that is the rule. What can be known of the sum's fitness is known before.
void Engine::close_before(Answer& answer) {
  const Sums* const sums = direction_->is.sums;
  if (answer.kind != Answer::kSum || !sums || !sums->closes_before(answer.count)) return;
  Given given;
  given.answer = &answer;
  find(given);
  if (runner_->at_once() && !std::isfinite(squares_of(answer)))
    throw Refusal(Why::kNotFinite, "update: NaN or infinity");
  Answer end;
  end.kind = Answer::kClose;
  step(&end, 1, false);
}

bool Engine::is_due() {
  const Sums* const sums = direction_->is.sums;
  const double grace = sums ? sums->grace(static_cast<int64_t>(waiting_.size())) : HUGE_VAL;
  if (!(grace < HUGE_VAL)) return false;
  const double time = ledger_.own_time();
  if (std::isnan(enough_since_)) enough_since_ = time;
  return time - enough_since_ >= grace;
}

bool Engine::close_round(Receipt* receipt, bool if_due) {
  const Inside inside(gate);
  Answer end;
  end.kind = Answer::kClose;
  if (!settings_.closes_early || (if_due && !is_due())) return false;
  try {
    if (step(&end, 1, false) == 0) return false;
  } catch (const Refusal& refused) {
    if (!if_due || refused.why != Why::kTooLarge) throw;
    return false;  // whoever called does something else, and the round goes on
  }
  *receipt = end.receipt;
  return true;
}

// How many of these answers one pass can take: trained models of different clients that have room in the buffer.
size_t Engine::together(const Answer* answers, size_t count) const {
  const Sums* const sums = direction_->is.sums;
  if (!settings_.folds || log_ || !sums || !sums->folds) return 0;
  const auto most = std::min(count, static_cast<size_t>(sums->room()));
  size_t found = 0;
  int64_t offset = ledger_.offset;
  while (found < most && answers[found].kind == Answer::kModel && !prepares(answers[found])) {
    const int64_t next = answers[found].offset;
    if (next >= 0 && next <= offset) break;  // an answer that came twice
    offset = std::max(offset, next);
    // Whether a client has a second open task is known only after its first answer counted.
    const auto is_its = [&](const Answer& other) { return other.client == answers[found].client; };
    if (std::any_of(answers, answers + found, is_its)) break;
    ++found;
  }
  return found;
}

// -- recovery --------------------------------------------------------------------------------------------------------

void Engine::execute(const log::Operation& operation, Answer* answer) {
  const Inside inside(gate);
  Answer end;
  end.kind = Answer::kClose;
  switch (operation.kind) {
    case log::kCloseRound:
      if (!settings_.closes_early)
        throw Refusal(Why::kDamaged, "the end of a round, and this server's rule has no rounds");
      if (operation.known) end.decided = &operation.decided;
      if (step(&end, 1, false) == 0) throw Refusal(Why::kDamaged, "the end of a round in which nothing had come");
      return;
    case log::kAnswer:
    case log::kRow: step(answer, 1, false); return;
    case log::kLost: give_up(operation.slots); return;
    default: apply(operation);
  }
}

}  // namespace fastagg::engine
