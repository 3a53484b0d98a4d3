#include "core.h"

#include <algorithm>
#include <cmath>

#include "../cpu/cpu.h"
#include "../math/half.h"

namespace fastagg::engine {
namespace {

double largest_of(const store::Vector& model, int64_t size, double limit) {
  const double norm = std::sqrt(cpu::sum_squares(store::update_of(model, size)));
  if (norm < std::min(1e37, limit / 2)) return norm;
  double largest = 0.0;
  const bool halves = model.dtype == kBFloat16;
  for (int64_t i = 0; i < size; ++i)
    largest = std::max<double>(largest, std::abs(halves ? widen_bf16(model.halves()[i]) : model.data[i]));
  return largest;
}

}  // namespace

Core::Core(const Settings& chosen, std::shared_ptr<DirectionState> along, const OptimizerSettings& steps, uint64_t seed,
           Place where, std::shared_ptr<Extension> language, store::Vector first)
    : settings(chosen),
      direction(std::move(along)),
      optimizer(steps, language && language->asks.step ? 0 : chosen.size, seed, where.memory),
      ledger(chosen.clients, chosen.keeps_versions),
      place(std::move(where)),
      inspector(place.device ? place.device->inspector(settings, *direction) : inspector_here(*direction)),
      extension(std::move(language)),
      model(std::move(first)) {
  direction->is.place = &place;
  ledger.participation.policy = settings.participation;
  const InOrder order(place);  // on a device, the caller's stream may still write the model
  if (place.device && !steps_in_python())
    place.device->load(optimizer.planned(0, optimizer.settings.lr, model.current, model.current), *direction);
}

Ledger::TaskReference Core::find(const Answer& answer) const {
  const ClientId& client = answer.client;
  const std::optional<uint64_t>& incarnation = answer.incarnation;
  if (answer.offset >= 0 && answer.offset <= ledger.offset)
    throw Refusal(Why::kAlreadyCounted, "client " + shown(client) + ": the answer at offset " +
                                            std::to_string(answer.offset) +
                                            " was counted already, or skipped: the server has come to offset " +
                                            std::to_string(ledger.offset) + "; go on behind it (server.offset)");
  const Ledger::TaskReference task = ledger.find(client, answer.version, answer.task);
  if (incarnation && ledger.incarnations.of(task.version) != *incarnation)
    throw Refusal(Why::kStaleIncarnation,
                  "client " + shown(client) + ": its task (version " + std::to_string(task.version) + ", incarnation " +
                      std::to_string(*incarnation) +
                      ") was sent before the server was restarted, or by another server, and its version is lost; drop "
                      "this answer and send a new task: server.dispatch(" +
                      shown(client) + ")");
  return task;
}

// Replaces the bounds of the model and the moments by measured values. Each step computes its bounds from the
// bounds before the step, so bounds become larger than needed. Measuring reads every element, but is rarely needed.
void Core::measure() {
  const InOrder order(place);
  const auto of = [&](const store::Vector& vector) {
    if (extension && extension->asks.bounds) return extension->bounds(vector, optimizer);
    return Bounds{largest_of(vector, settings.size, settings.largest_model), optimizer.measured()};
  };
  Bounds bounds = of(model.current);
  if (direction->is.blends)
    for (const auto& [version, kept] : ledger.kept.all()) bounds.model = std::max(bounds.model, of(kept).model);
  model.bound = direction->model_bound = bounds.model;
  optimizer.bounds = bounds.moments;
}

}  // namespace fastagg::engine
