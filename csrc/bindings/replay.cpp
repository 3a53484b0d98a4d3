// Executes the records of a log again, when fastagg/durable recovers a server.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "arrays.h"
#include "extension.h"
#include "server.h"

namespace fastagg::bindings {
namespace {

using engine::Answer;

// Makes an answer from a log's record. `body` owns the memory of the record's parts. If the update was streamed into a
// file, `update` has the file's content. Otherwise `update` is None.
Answer answer_of(const ServerObject& server, const log::Operation& operation, const py::object& body,
                 const py::object& update) {
  const auto damaged = [](const std::string& text) { throw Refusal(Why::kDamaged, text); };
  const engine::Settings& settings = server.engine->settings;
  Answer answer;
  answer.client = operation.client;
  answer.version = operation.version;
  answer.samples = operation.share;
  if (operation.known != 0 && !operation.again) answer.decided = &operation;
  answer.is_private = true;
  // The owner is wrapped in another owner. Otherwise pieces_of (extension.cpp) would take the record's Python object
  // for the update's Pieces.
  answer.owner = std::make_shared<store::Owner>(owner_of(body));
  if (!(std::isfinite(operation.share) && operation.share >= 0.0))
    damaged("the update's weight is no number of at least 0");
  auto reported = std::make_shared<engine::ReportedStatistics>();
  std::vector<float> values;
  for (const log::Part& part : operation.parts) {
    const auto count = static_cast<int64_t>(part.count);
    if (part.role == log::kParameters) {
      if (part.dtype >= kDtypes) damaged("parameters of an unknown type");
      answer.update.add(part.data, count, static_cast<Dtype>(part.dtype));
    } else if (part.role == log::kEncodedRole) {
      auto encoded = store::Encoded::read(part.data, count);
      answer.update = encoded->update();
      answer.owner = std::move(encoded);
    } else if (part.role == log::kBuffers) {
      if (part.dtype != kFloat32) damaged("statistics of an unknown type");
      const auto* from = reinterpret_cast<const float*>(part.data);
      values.insert(values.end(), from, from + count);
    } else if (part.role == log::kCounter) {
      if (part.dtype != log::kInt64) damaged("counters of an unknown type");
      const auto* from = reinterpret_cast<const int64_t*>(part.data);
      reported->counters.insert(reported->counters.end(), from, from + count);
    } else if (part.role == log::kControl) {
      if (part.dtype != kFloat32) damaged("what came besides an update is of an unknown type");
      answer.control = store::new_vector(count);
      answer.control_size = count;
      std::memcpy(answer.control.data, part.data, part.nbytes());
    } else if (part.role == log::kUpdates) {
      if (part.dtype != log::kInt64 || count != 1) damaged("a sum's number of updates is not one whole number");
      answer.kind = Answer::kSum;
      std::memcpy(&answer.count, part.data, sizeof answer.count);
      answer.total = operation.share;
    } else if (part.role == log::kParticipants) {
      answer.participants = log::clients_in(part);
    } else if (part.role == log::kOffset) {
      if (part.dtype != log::kInt64 || count != 1) damaged("an offset that is not one whole number");
      std::memcpy(&answer.offset, part.data, sizeof answer.offset);
      if (answer.offset < 0) damaged("an offset below zero");
    }
  }
  if (!update.is_none()) {
    answer.update = update_of(update.attr("native"));
    answer.owner = owner_of(update);
  }
  if (answer.update.size != settings.size)
    damaged("the update has " + std::to_string(answer.update.size) + " numbers, expected " +
            std::to_string(settings.size));
  if (!values.empty()) {
    reported->size = static_cast<int64_t>(values.size());
    reported->values = store::new_vector(reported->size);
    std::copy(values.begin(), values.end(), reported->values.data);
  }
  if (reported->has_values()) {
    const py::object fits = python_of(*server.engine->extension).attr("fits");
    if (!py::cast<bool>(fits(reported->size, reported->counters.size()))) damaged("the statistics are not the model's");
    answer.reported = std::move(reported);
  }
  return answer;
}

// Sends a replayed answer's update and statistics to the device. An encoded update that only the engine reads stays in
// host memory, and the engine sends it.
void bring(const ServerObject& server, Answer& answer) {
  if (store::is_encoded(answer.update) && !answer.reported && !server.engine->extension->asks.prepare)
    return stay_in_host(answer);
  const py::list pieces = tensors_in(answer.owner, answer.update);
  const py::object reported = answer.reported ? py::cast(answer.reported) : py::none();
  const py::tuple brought = python_of(*server.engine->extension).attr("brought")(pieces, reported);
  const py::object there = brought[0], extra = brought[1];
  answer.update = update_of(there.attr("native"));
  answer.owner = owner_of(there);
  if (!extra.is_none()) answer.extra = owner_of(extra);
}

}  // namespace

void execute(ServerObject& server, const log::Operation& operation, const py::object& body, const py::object& update) {
  Answer answer;
  const bool answers = operation.kind == log::kAnswer;
  if (answers) answer = answer_of(server, operation, body, update);
  if (server.device >= 0 && answers) bring(server, answer);
  const GilRelease released(answers && server.is_long());
  server.engine->execute(operation, &answer);
}

}  // namespace fastagg::bindings
