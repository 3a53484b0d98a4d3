// An answer before its step is planned: its task, its bytes, its norm and its weight. It may be refused here.
#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "core.h"

namespace fastagg::engine {
namespace {

constexpr int64_t kLargestOverflow = int64_t{1} << 20;  // limits the memory for their versions

void weigh(const Core& of, Given& given) {
  Contribution& brings = given.brings;
  const int64_t delay = brings.now - brings.start;
  const Staleness& staleness = of.settings.staleness;
  if (const auto weight = staleness.weight ? staleness.weight_of(delay) : of.extension->weight(delay); weight)
    brings.weight = *weight;
  else
    given.counts = false;
}

// What an answer counts for in a mean.
double share_of(const Settings& settings, const Answer& answer) {
  if (answer.kind == Answer::kSum || !settings.weighs_by_samples) return 1.0;
  if (std::isnan(answer.samples))
    throw Refusal(Why::kSetting,
                  "num_samples: needed with weighting=\"samples\" and \"tokens\", got None; write receive(..., "
                  "num_samples=len(data))");
  return std::min(answer.samples, settings.max_samples);
}

Question question_of(const Core& of, const Given& given) {
  const Answer& answer = *given.answer;
  const Sums* const sums = of.direction->is.sums;
  return {answer.client,
          given.task.version,
          of.ledger.now,
          given.task.local_steps,
          given.norm,
          given.brings.share,
          sums ? sums->room() : 0,
          sums ? sums->total() : 0.0,
          answer.update,
          answer.copy ? answer.copy : answer.owner,
          of.model.current,
          given.base,
          answer.control,
          answer.control_size,
          answer.reported,
          answer.extra};
}

}  // namespace

// Finds the task that an answer refers to, and what it counts for.
void Stages::find_task(Given& given) {
  Answer& answer = *given.answer;
  given.task = core_.find(answer);
  core_.direction->check(answer.client, given.task.version, core_.ledger.now);
  const Sums* const sums = core_.direction->is.sums;
  if (core_.direction->is.privacy && answer.kind == Answer::kSum)
    throw Refusal(Why::kSetting,
                  "receive_partial: a sum of clients' updates is not clipped one by one, and this "
                  "server is private; let clients answer it themselves");
  if (answer.kind == Answer::kSum && answer.count > std::max(sums ? sums->room() : 0, kLargestOverflow))
    throw Refusal(Why::kSetting, "receive_partial: a sum of " + std::to_string(answer.count) +
                                     " updates, and a step takes at most " + std::to_string(kLargestOverflow) +
                                     " more than its buffer's size: let leaves take more often");
  Contribution& brings = given.brings;
  brings.client = given.task.client;
  brings.start = given.task.version;
  brings.now = core_.ledger.now;
  brings.share = share_of(core_.settings, answer);
  brings.count = answer.count;
  brings.total = answer.total;
  given.counts = brings.share > 0.0 || sums;  // without samples it only takes a place in a round
  if (!core_.prepares(answer)) weigh(core_, given);
}

// Checks that the answer's clients may take part. A leaf's sum counts for those that it names.
void Stages::check_participants(const Answer& answer) const {
  const Participation& participation = core_.ledger.participation;
  if (!participation.policy.limits()) return;
  const auto check = [&](const ClientId& client) { participation.check(client, core_.ledger.steps, core_.ledger.now); };
  if (answer.kind != Answer::kSum) return check(answer.client);
  for (const ClientId& client : answer.participants) check(client);
}

// Makes places where the answer's clients are counted, once nothing refuses it: what is refused leaves no names behind.
void Stages::place_participants(Given& given) {
  Participation& participation = core_.ledger.participation;
  if (!participation.policy.limits() || !given.counts) return;
  const Answer& answer = *given.answer;
  const auto place = [&](const ClientId& client) { given.participants.push_back(participation.place_for(client)); };
  if (answer.kind != Answer::kSum) return place(answer.client);
  for (const ClientId& client : answer.participants) place(client);
}

// Looks at a few numbers of an answer of any kind, before they are read for the step. What they say is only told, so
// numbers on a device, which the host would have to wait for, are left out.
void Stages::compare_form(Given& given) {
  const Answer& answer = *given.answer;
  if (core_.place.device || answer.kind == Answer::kSum) return;
  const bool is_trained = answer.kind == Answer::kModel && answer.base;
  const store::Vector sent = is_trained ? answer.base : core_.ledger.kept.of(given.task.version);
  given.is_misformed = cpu::is_misformed(
      answer.update, store::update_of(sent ? sent : core_.model.current, core_.settings.size), is_trained);
}

// Reads the update, once: into memory of the engine's own, which is the record's where there is one.
void Stages::inspect_update(Given& given) {
  Answer& answer = *given.answer;
  const Inspector& inspector = *core_.inspector;
  if (cpu::Tensors* const tensors = core_.direction->is.tensors) tensors->m = core_.optimizer.m();
  core_.records.begin(given, inspector.numbers(answer), core_.ledger);
  inspector.inspect(given, core_.prepares(answer));
}

// What the extension finds out about an update, its weight and its clipping.
void Stages::ask_extension(Given& given) {
  Answer& answer = *given.answer;
  Contribution& brings = given.brings;
  if (core_.prepares(answer) && given.counts) {
    given.base = core_.ledger.kept.of(given.task.version);
    given.findings = core_.extension->prepare(question_of(core_, given));
    const Findings& found = given.findings;
    given.norm = found.norm.value_or(given.norm);
    brings.share = found.share.value_or(brings.share);
    if (found.update) answer.update = *found.update;
    given.counts = !found.drops;
    if (found.weight) {
      brings.weight = *found.weight;
    } else if (given.counts) {
      weigh(core_, given);
    }
  }
  brings.norm = given.norm;
  const double most = core_.clip_norm();
  if (given.findings.gain) {
    brings.moves = *given.findings.gain;
  } else if (most > 0.0 && given.norm > most && answer.kind != Answer::kSum) {
    brings.gain = brings.moves = most / given.norm;
    brings.norm = most;
  }
  if (!core_.direction->is.blends) return;
  given.base = core_.ledger.kept.of(given.task.version);
  brings.base = given.base.data;
}

}  // namespace fastagg::engine
