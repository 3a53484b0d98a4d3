// Every allocation of an operation fails in turn. Each time the server is as before, and the next call works. From the
// first kernel of a step to the last line of its commit there is no allocation that could fail.
#include <cstddef>
#include <cstdlib>
#include <new>

#include "../../../csrc/cpu/pool.h"
#include "check.h"
#include "server.h"

namespace {
thread_local int64_t left = -1;     // allocations until one fails; negative: none does
thread_local bool running = false;  // a kernel has been called, and the commit has not ended
thread_local int64_t late = 0;      // allocations since

void* given(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) {
  late += running;
  if (left >= 0 && left-- == 0) throw std::bad_alloc();
  if (void* const found = std::aligned_alloc(alignment, (size / alignment + 1) * alignment)) return found;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(std::size_t size) { return given(size); }
void* operator new[](std::size_t size) { return given(size); }
void* operator new(std::size_t size, std::align_val_t by) { return given(size, static_cast<std::size_t>(by)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

using namespace fastagg;
using namespace fastagg::engine;

namespace {

// All that a caller can see.
struct Seen {
  std::vector<float> model, sum;
  int64_t version, steps, open, known, room, expired;
  std::vector<std::pair<ClientId, int64_t>> last;
  std::vector<int64_t> owners, tasks;
  std::vector<std::pair<int64_t, uint64_t>> incarnations;

  explicit Seen(const Server& server) : model(server.model()) {
    Engine& engine = *server.engine;
    const Ledger& ledger = engine.ledger;
    version = ledger.now, steps = ledger.steps, open = ledger.roster.tasks.count(), known = ledger.roster.known;
    const Sums* const sums = engine.direction->is.sums;
    room = sums ? sums->room() : 0, expired = ledger.leases.expired;
    if (const auto* const buffer = dynamic_cast<const BufferedDirection*>(engine.direction.get());
        buffer && room < kCapacity && buffer->sum.acc)
      sum.assign(buffer->sum.acc.data, buffer->sum.acc.data + server.size);
    const Ledger::State state = ledger.state();
    for (size_t i = 0; i < state.clients.size(); ++i) last.emplace_back(state.clients[i], state.last_sent[i]);
    owners = state.task_client, tasks = state.task_version;
    incarnations = ledger.incarnations.all;
  }
  static bool same(const std::vector<float>& one, const std::vector<float>& other) {
    if (one.size() != other.size()) return false;
    return one.empty() || std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;  // data() may be null
  }
  bool operator==(const Seen& other) const {
    return same(model, other.model) && same(sum, other.sum) && version == other.version && steps == other.steps &&
           open == other.open && known == other.known && room == other.room && expired == other.expired &&
           last == other.last && owners == other.owners && tasks == other.tasks && incarnations == other.incarnations;
  }
};

struct Fixture {
  Server server;
  std::vector<float> first, second;
  std::vector<Answer> answers;

  Fixture(Rule rule, bool numbered, int64_t size) : server(rule, size, numbered) {
    std::mt19937_64 random(7);
    first = numbers(size, random), second = numbers(size, random);
    Engine& engine = *server.engine;
    for (int64_t i = 0; i < 3; ++i) engine.dispatch(ClientId::of(i));
    Answer one = answer_of(0, 0, first);
    CHECK(engine.receive(&one, 1).done == 1);
    engine.begin_incarnation(engine.ledger.now, 5);
    for (int64_t i = 2; i < 5; ++i) engine.dispatch(ClientId::of(i));
    answers.push_back(answer_of(1, 0, second));
  }
};

// Returns how many allocations the operation makes.
template <typename Act>
int64_t fail_each(Rule rule, bool numbered, Act act, int64_t size = 300) {
  for (int64_t failing = 0;; ++failing) {
    Fixture fresh(rule, numbered, size);
    const Seen before(fresh.server);
    left = failing;
    bool failed = false;
    try {
      failed = !act(fresh);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    const bool reached = left < 0;
    left = -1;
    CHECK(reached || !failed);
    if (!reached) return failing;
    if (!failed) continue;  // a failure that the operation can do without
    CHECK(Seen(fresh.server) == before);
    fresh.answers.assign(1, answer_of(1, 0, fresh.second));  // an answer that failed is read again
    CHECK(act(fresh));
    Fixture other(rule, numbered, size);
    CHECK(act(other));
    CHECK(Seen(fresh.server) == Seen(other.server));
  }
}

bool receive(Fixture& on) {
  const auto result = on.server.engine->receive(on.answers.data(), on.answers.size());
  CHECK(!result.refused);
  return result.done == 1;
}

bool receive_model(Fixture& on) {
  on.answers.front().kind = Answer::kModel;
  const store::Vector base = on.server.engine->ledger.kept.of(0);
  on.answers.front().base = base;
  return receive(on);
}

bool receive_model_in_place(Fixture& on) {
  on.answers.front().still = true;
  return receive_model(on);
}

// Tells when a step's first kernel is called. `plants`: it allocates there.
class Marks : public CpuRunner {
 public:
  explicit Marks(bool plants) : plants_(plants) {}
  void step(const Update& update, const Direction& direction, const Optimizer& optimizer) override {
    mark();
    CpuRunner::step(update, direction, optimizer);
  }
  void accumulate(const Update& update, const float* acc, double weight, float* out) override {
    mark();
    CpuRunner::accumulate(update, acc, weight, out);
  }
  void recompute_sum(const Rows& rows, const float* weights, float* sum) override {
    mark();
    CpuRunner::recompute_sum(rows, weights, sum);
  }
  void add_rows(const Rows& rows, const std::vector<RowJob>& jobs, const float* weights, float weight) override {
    mark();
    CpuRunner::add_rows(rows, jobs, weights, weight);
  }

 private:
  void mark() {
    running = true;
    if (plants_) planted_ = std::make_unique<int64_t>(late);
  }
  const bool plants_;
  std::unique_ptr<int64_t> planted_;  // a member, so that no compiler leaves it out
};

// How many allocations fell between the first kernel of a step and the end of its commit, over some rounds.
int64_t late_in(Rule rule, int64_t size, bool plants) {
  Server server(rule, size, true, std::make_shared<Marks>(plants));
  std::mt19937_64 random(3);
  const std::vector<float> values = numbers(size, random);
  Engine& engine = *server.engine;
  late = 0;
  for (int64_t turn = 0; turn < 12 * kClients; ++turn) {
    for (int64_t i = 0; turn % kClients == 0 && i < kClients; ++i) engine.dispatch(ClientId::of(i));
    Answer one = answer_of(turn % kClients, kLastSent, values);
    const auto taken = engine.receive(&one, 1);
    running = false;
    CHECK(taken.done == 1);
  }
  return late;
}

void no_late_ones() {
  for (const Rule rule : {Rule::kFedBuff, Rule::kAsgd, Rule::kFadas, Rule::kAce, Rule::kAceInt8, Rule::kAced,
                          Rule::kCa2fl, Rule::kFedAvg, Rule::kCombined})
    for (const int64_t size : {int64_t{300}, int64_t{5000}}) {  // a larger update is read once, aside
      const int64_t found = late_in(rule, size, false);
      if (found != 0) std::printf("rule %d: %lld late\n", static_cast<int>(rule), static_cast<long long>(found));
      CHECK(found == 0);
      CHECK(late_in(rule, size, true) > 0);
    }
}

}  // namespace

void allocations() {
  no_late_ones();
  int64_t found = 0;
  for (const Rule rule : kRules)
    for (const bool numbered : {true, false}) {
      const auto each = [&](auto act) { found += fail_each(rule, numbered, act); };
      each(receive);
      each(receive_model);
      each([](Fixture& on) { return on.server.engine->dispatch(ClientId::of(6)).version >= 0; });
      each([](Fixture& on) {
        return on.server.engine->hand_on(ClientId::of(1), 0, kNoTask, ClientId::of(6)).version == 0;
      });
      each([](Fixture& on) { return on.server.engine->forget(ClientId::of(2), std::nullopt), true; });
      each([](Fixture& on) { return on.server.engine->forget(ClientId::of(1), 0), true; });
      each([](Fixture& on) { return on.server.engine->expire(5) > 0; });
      each([](Fixture& on) { return on.server.engine->begin_incarnation(0, 9), true; });
      if (rule != Rule::kFedBuff && rule != Rule::kFadas) continue;
      each(receive_model_in_place);
      cpu::set_threads(2);  // so that a part of the sum is written while another one begins
      found += fail_each(rule, numbered, receive_model_in_place, 200'000);
      cpu::set_threads(1);
      each([](Fixture& on) {
        Receipt receipt;
        return on.server.engine->close_round(&receipt);
      });
    }
  CHECK(found > 100);
  std::printf("%lld allocations failed in turn\n", static_cast<long long>(found));
}
