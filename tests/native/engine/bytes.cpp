// Random and mutated bytes as operations and as segments of a log. Each is read or refused; what is read executes or is
// refused.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "../../../csrc/log/segment.h"
#include "check.h"
#include "server.h"

using namespace fastagg;
using namespace fastagg::engine;

namespace {

using Bytes = std::vector<uint8_t>;

template <typename... Each>
void put(Bytes& to, Each... each) {
  const auto one = [&](const auto& value) {
    const auto* at = reinterpret_cast<const uint8_t*>(&value);
    to.insert(to.end(), at, at + sizeof value);
  };
  (one(each), ...);
}

// The body of a good record (csrc/log/operation.cpp).
Bytes good(uint8_t kind, const std::vector<float>& values) {
  log::Operation operation;
  operation.version = 0, operation.task = 1, operation.rate = 0.5;
  operation.incarnation = kind == log::kIncarnation ? 3 : 0;
  operation.applied = 1, operation.version_after = 1, operation.step_size = kRate;
  operation.weight = operation.norm = 1.0;
  Bytes body;
  if (log::has_client(kind)) put(body, uint8_t{0}, int64_t{1}, int64_t{0});
  log::each_field(kind, [&](auto field) { put(body, operation.*field.value); });
  if (kind != log::kAnswer) return body;
  put(body, uint32_t{1});
  put(body, static_cast<uint8_t>(log::kParameters), uint8_t{0}, static_cast<uint64_t>(values.size()));
  body.resize(body.size() + log::gap_of(body.size()));
  for (const float value : values) put(body, value);
  return body;
}

void execute(uint8_t kind, const Bytes& body) {
  try {
    const log::Operation operation = log::read(kind, body.data(), body.size());
    CHECK(operation.kind == kind);
    CHECK(log::name_of(operation.kind)[0] != 0);
    for (const log::Part& part : operation.parts) {
      CHECK(part.data >= body.data() && part.data + part.nbytes() <= body.data() + body.size());
    }
    Server server(Rule::kAsgd, 8);
    Engine& engine = *server.engine;
    engine.dispatch(ClientId::of(1));
    Answer answer;
    if (kind == log::kAnswer) {
      const auto& parts = operation.parts;
      const auto part =
          std::find_if(parts.begin(), parts.end(), [](const log::Part& one) { return one.role == log::kParameters; });
      if (part == parts.end() || part->count != 8 || part->dtype != kFloat32) return;
      answer.client = operation.client, answer.version = operation.version;
      answer.incarnation = operation.incarnation;
      answer.decided = &operation;
      answer.update.add(part->data, 8, kFloat32);
    }
    const auto before = engine.ledger.state();
    try {
      engine.execute(operation, &answer);
    } catch (const Refusal&) {
      const auto after = engine.ledger.state();
      CHECK(before.version == after.version && before.task_version == after.task_version);
    }
    CHECK(std::isfinite(engine.optimizer.settings.lr));
    const auto state = engine.ledger.state();
    CHECK(static_cast<int64_t>(state.clients.size()) == engine.ledger.roster.known);
    CHECK(static_cast<int64_t>(state.task_client.size()) == engine.ledger.roster.tasks.count());
    for (const int64_t version : state.task_version) CHECK(version >= 0 && engine.ledger.kept.of(version));
    engine.dispatch(ClientId::of(2));
  } catch (const Refusal&) {
  }
}

log::Reader reader_of(const Bytes& segment) {
  log::Reader::ExpectedEnd after;
  after.folder = 11;
  const auto load = [&segment](size_t) { return log::Bytes{segment.data(), segment.size(), nullptr}; };
  const Bytes block(segment.begin(), segment.begin() + static_cast<int64_t>(std::min(log::kBlock, segment.size())));
  return log::Reader({{"segment", 1, segment.size(), block}}, load, after);
}

void scan(const Bytes& segment) {
  for (const log::Record& record : log::records_in({segment.data(), segment.size(), nullptr}))
    CHECK(record.body >= segment.data() && record.body + record.head.length <= segment.data() + segment.size());
  try {
    log::Reader reader = reader_of(segment);
    uint64_t last = 0;
    while (const auto record = reader.next()) {
      CHECK(record->head.sequence == ++last);
      execute(record->head.kind, Bytes(record->body, record->body + record->head.length));
    }
  } catch (const Refusal&) {
  }
}

Bytes segment(const std::vector<float>& values) {
  Bytes made(log::kBlock);
  log::BlockHead head{};
  head.number = 1, head.use = 77, head.first = 1, head.folder = 11;
  log::put_head(head, made.data());
  uint64_t sequence = 0;
  for (uint8_t kind = 1; kind < log::kKinds; ++kind) {
    const Bytes body = good(kind, values);
    log::RecordHead record{};
    record.use = 77, record.sequence = ++sequence, record.length = body.size(), record.kind = kind;
    const size_t at = made.size();
    made.resize(at + log::kRecordHead + body.size() + log::gap_of(body.size()));
    std::memcpy(made.data() + at + log::kRecordHead, body.data(), body.size());
    log::put_head(record, made.data() + at);
  }
  made.resize(log::next_block(made.size()) + 2 * log::kBlock);
  return made;
}

void mutate(Bytes& body, std::mt19937_64& random) {
  static const int64_t edges[] = {INT64_MAX, INT64_MIN, -1, 0, 1, 0x7ff8000000000000, 1 << 30};
  for (uint64_t count = 1 + random() % 3; count > 0 && !body.empty(); --count) {
    const size_t at = random() % body.size();
    if (random() % 4 == 0)
      body.resize(at);
    else if (random() % 2 == 0 && body.size() >= at + 8)
      std::memcpy(&body[at], &edges[random() % 7], 8);
    else
      body[at] = static_cast<uint8_t>(random());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Bytes body(data + 1, data + size);
  if (data[0] < 128)
    execute(data[0] % 12, body);
  else
    scan(body);
  return 0;
}

void bytes() {
  std::mt19937_64 random(5);
  const std::vector<float> values = numbers(8, random);
  for (int turn = 0; turn < 20000; ++turn) {
    const auto kind = static_cast<uint8_t>(random() % (log::kKinds + 1));
    Bytes body = good(kind, values);
    if (turn % 4 == 0)
      body.resize(random() % 200), std::generate(body.begin(), body.end(), std::ref(random));
    else
      mutate(body, random);
    execute(kind, body);
  }
  const Bytes whole = segment(values);
  scan(whole);
  log::Reader reader = reader_of(whole);
  for (uint8_t kind = 1; kind < log::kKinds; ++kind) CHECK(reader.next()->head.kind == kind);
  CHECK(!reader.next());
  for (int turn = 0; turn < 3000; ++turn) {
    Bytes changed = whole;
    mutate(changed, random);
    scan(changed);
  }
}
