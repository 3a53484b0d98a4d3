// Steps of whole rules, against their formulas in double.
#include <cmath>

#include "check.h"
#include "server.h"

using namespace fastagg;
using namespace fastagg::engine;

namespace {

using Doubles = std::vector<double>;

// What the papers write, in double.
struct Reference {
  Rule rule;
  Doubles x, sum, m, v, largest;
  std::vector<Doubles> rows;
  double total = 0.0;
  int64_t held = 0, version = 0;

  Reference(Rule which, int64_t size) : rule(which), rows(kClients) {
    x = sum = m = v = largest = Doubles(static_cast<size_t>(size));
  }

  void step(const Doubles& d) {
    for (size_t i = 0; i < x.size(); ++i) {
      if (rule == Rule::kFadas) {
        m[i] = kBeta1 * m[i] + (1 - kBeta1) * d[i];
        v[i] = kBeta2 * v[i] + (1 - kBeta2) * d[i] * d[i];
        largest[i] = std::max(largest[i], v[i]);
        x[i] += kRate * m[i] / (std::sqrt(largest[i]) + kEps);
      } else {
        x[i] += kRate * d[i];
      }
    }
    ++version;
  }
  void flush() {
    Doubles mean = sum;
    for (double& one : mean) one /= total;
    step(mean);
    sum.assign(sum.size(), 0.0), total = 0.0, held = 0;
  }
  void take(int64_t client, const Doubles& update, int64_t count, double weight) {
    if (rule == Rule::kFedBuff || rule == Rule::kFadas || rule == Rule::kCombined) {
      for (size_t i = 0; i < x.size(); ++i) sum[i] += update[i];
      total += weight, held += count;
      if (held == kCapacity) flush();
      return;
    }
    Doubles d(x.size());
    rows[static_cast<size_t>(client)] = update;
    double known = 0.0;
    for (const Doubles& row : rows) known += !row.empty();
    for (size_t i = 0; i < x.size(); ++i) {
      for (const Doubles& row : rows)
        if (!row.empty()) d[i] -= row[i] / known;
      if (rule == Rule::kAsgd) d[i] = -update[i];
    }
    step(d);
  }
};

void trace(Rule rule, int64_t size) {
  std::mt19937_64 random(static_cast<uint64_t>(size));
  Server server(rule, size);
  Engine& engine = *server.engine;
  Reference expected(rule, size);
  const bool adds = rule == Rule::kFedBuff || rule == Rule::kFadas, buffers = adds || rule == Rule::kCombined;
  int64_t models = 0, sums = 0, closed = 0;
  for (int turn = 0; turn < 60; ++turn) {
    const auto client = static_cast<int64_t>(random() % kClients);
    const Task task = engine.dispatch(ClientId::of(client));
    CHECK(task.version == expected.version);
    std::vector<float> values = numbers(size, random);
    Answer answer = answer_of(client, task.version, values);
    Doubles update(values.begin(), values.end());
    double weight = 1.0;
    if (buffers && turn % 4 == 1) {
      ++models;
      answer.kind = Answer::kModel;
      answer.base = task.model.data, answer.base_owner = task.model.owner;
      for (size_t i = 0; i < update.size(); ++i) update[i] -= task.model.data[i];
    } else if (adds && turn % 4 == 2 && expected.held + 2 <= kCapacity) {
      ++sums;
      answer.kind = Answer::kSum;
      answer.count = 2, answer.total = weight = 2.5;
    }
    const auto sent = engine.receive(&answer, 1);
    CHECK(sent.done == 1 && !sent.refused && !sent.failed);
    expected.take(client, update, answer.kind == Answer::kSum ? 2 : 1, weight);
    CHECK(answer.receipt.version == expected.version);
    if (buffers && turn % 11 == 3) {
      Receipt receipt;
      const bool closes = expected.held > 0;
      CHECK(engine.close_round(&receipt) == closes);
      if (!closes) continue;
      expected.flush(), ++closed;
      CHECK(receipt.applied && receipt.version == expected.version);
    }
    for (size_t i = 0; i < expected.x.size(); ++i)
      CHECK(std::abs(engine.model().data[i] - expected.x[i]) <= 2e-5 * (1.0 + std::abs(expected.x[i])));
  }
  CHECK(!buffers || (models > 0 && (sums > 0 || !adds) && closed > 0));
  CHECK(engine.ledger().open_tasks() == 0);
}

}  // namespace

void traces() {
  for (const Rule rule : kRules)
    for (const int64_t size : {1, 257, 3001}) trace(rule, size);
}
