// The stages of an answer before its step is planned, and place_participants, which is called later. These stages find
// the answer's task, read the answer's bytes, and compute the update's norm and weight. They may refuse the answer.
#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "core.h"

namespace fastagg::engine {
namespace {

// A leaf server's sum may have this many updates, even if the buffer has less room. The buffer stores the version of
// each update, so a sum of more updates could fill the memory.
constexpr int64_t kLargestOverflow = int64_t{1} << 20;

void weigh(const Core& of, PendingAnswer& pending) {
  Contribution& brings = pending.brings;
  const int64_t delay = brings.now - brings.start;
  const Staleness& staleness = of.settings.staleness;
  if (const auto weight = staleness.weight ? staleness.weight_of(delay) : of.extension->weight(delay); weight)
    brings.weight = *weight;
  else
    pending.counts = false;
}

// Returns an answer's weight in a mean.
double share_of(const Settings& settings, const Answer& answer) {
  if (answer.kind == Answer::kSum || !settings.weighs_by_samples) return 1.0;
  if (std::isnan(answer.samples))
    throw Refusal(Why::kSetting,
                  "num_samples: needed with weighting=\"samples\" and \"tokens\", got None; write receive(..., "
                  "num_samples=len(data))");
  return std::min(answer.samples, settings.max_samples);
}

Question question_of(Core& of, const PendingAnswer& pending) {
  const Answer& answer = *pending.answer;
  const Sums* const sums = of.direction->is.sums;
  return {answer.client,
          pending.task.version,
          of.ledger.now,
          pending.task.local_steps,
          pending.norm,
          pending.brings.share,
          sums ? sums->room() : 0,
          sums ? sums->total() : 0.0,
          answer.update,
          answer.copy ? answer.copy : answer.owner,
          of.model.share(),  // Python code may keep it
          pending.base,
          answer.control,
          answer.control_size,
          answer.reported,
          answer.extra};
}

}  // namespace

// Finds an answer's task, and computes its share. Computes the weight, too, unless the extension prepares the answer.
void Stages::find_task(PendingAnswer& pending) {
  Answer& answer = *pending.answer;
  pending.task = core_.find(answer);
  core_.direction->check(answer.client, pending.task.version, core_.ledger.now);
  const Sums* const sums = core_.direction->is.sums;
  if (core_.direction->is.privacy && answer.kind == Answer::kSum)
    throw Refusal(Why::kSetting,
                  "receive_partial: a sum of clients' updates is not clipped one by one, and this "
                  "server is private; let clients answer it themselves");
  const int64_t largest = std::max(sums ? sums->room() : 0, kLargestOverflow);
  if (answer.kind == Answer::kSum && answer.count > largest)
    throw Refusal(Why::kSetting, "receive_partial: a sum of " + std::to_string(answer.count) +
                                     " updates, and this server takes at most " + std::to_string(largest) +
                                     " at a time: call Leaf.take more often");
  Contribution& brings = pending.brings;
  brings.client = pending.task.client;
  brings.start = pending.task.version;
  brings.now = core_.ledger.now;
  brings.share = share_of(core_.settings, answer);
  brings.count = answer.count;
  brings.total = answer.total;
  // An answer with 0 samples adds nothing to a mean. It counts only in a buffer, where it takes a place in the round.
  pending.counts = brings.share > 0.0 || sums;
  if (!core_.prepares(answer)) weigh(core_, pending);
}

// Checks that the answer's clients may take part. For a leaf server's sum, checks the clients that the leaf names.
void Stages::check_participants(const Answer& answer) const {
  const Participation& participation = core_.ledger.participation;
  if (!participation.policy.limits()) return;
  const auto check = [&](const ClientId& client) { participation.check(client, core_.ledger.steps, core_.ledger.now); };
  if (answer.kind != Answer::kSum) return check(answer.client);
  for (const ClientId& client : answer.participants) check(client);
}

// Finds the places of the answer's clients in the participation counts, and adds places for new clients. The counts
// themselves change only at the commit. This is called as late as possible, because an answer that is refused
// afterwards leaves a new client's place with a count of 0.
void Stages::place_participants(PendingAnswer& pending) {
  Participation& participation = core_.ledger.participation;
  if (!participation.policy.limits() || !pending.counts) return;
  const Answer& answer = *pending.answer;
  const auto place = [&](const ClientId& client) { pending.participants.push_back(participation.place_for(client)); };
  if (answer.kind != Answer::kSum) return place(answer.client);
  for (const ClientId& client : answer.participants) place(client);
}

// Compares a few elements with the model, to check whether the answer is a trained model or an update, as the sender
// states. The result is only reported. Nothing is compared for sums, or on a device, where the host would have to wait.
void Stages::compare_form(PendingAnswer& pending) {
  const Answer& answer = *pending.answer;
  if (core_.place.device || answer.kind == Answer::kSum) return;
  const bool is_trained = answer.kind == Answer::kModel && answer.base;
  const store::Vector sent = is_trained ? answer.base : core_.ledger.kept.of(pending.task.version);
  pending.is_misformed = cpu::is_misformed(
      answer.update, store::update_of(sent ? sent : core_.model.current, core_.settings.size), is_trained);
}

// Begins the answer's log record, if there is a log. Then the inspector reads the update and computes its norm. On the
// CPU the inspector may also copy the elements: to the record, or to the engine's own memory if there is no record or
// if later stages need the elements. On a device the extension may compute the norm instead.
void Stages::inspect_update(PendingAnswer& pending) {
  Answer& answer = *pending.answer;
  const Inspector& inspector = *core_.inspector;
  if (cpu::Tensors* const tensors = core_.direction->is.tensors) tensors->m = core_.optimizer.m();
  core_.records.begin(pending, inspector.numbers(answer), core_.ledger);
  inspector.inspect(pending, core_.prepares(answer));
}

// Asks the extension about an update if the rule or the answer needs the extension, and then computes the weight. Also
// computes the clipping factor, and finds the model for a step that reads the version that the client trained from.
void Stages::ask_extension(PendingAnswer& pending) {
  Answer& answer = *pending.answer;
  Contribution& brings = pending.brings;
  if (core_.prepares(answer) && pending.counts) {
    pending.base = core_.ledger.kept.of(pending.task.version);
    pending.findings = core_.extension->prepare(question_of(core_, pending));
    const Findings& findings = pending.findings;
    pending.norm = findings.norm.value_or(pending.norm);
    brings.share = findings.share.value_or(brings.share);
    if (findings.update) answer.update = *findings.update;
    pending.counts = !findings.drops;
    if (findings.weight) {
      brings.weight = *findings.weight;
    } else if (pending.counts) {
      weigh(core_, pending);
    }
  }
  brings.norm = pending.norm;
  const double clip_norm = core_.clip_norm();
  if (pending.findings.gain) {
    brings.moves = *pending.findings.gain;
  } else if (clip_norm > 0.0 && pending.norm > clip_norm && answer.kind != Answer::kSum) {
    brings.gain = brings.moves = clip_norm / pending.norm;
    brings.norm = clip_norm;
  }
  if (!core_.direction->is.blends) return;
  pending.base = core_.ledger.kept.of(pending.task.version);
  brings.base = pending.base.data;
}

}  // namespace fastagg::engine
