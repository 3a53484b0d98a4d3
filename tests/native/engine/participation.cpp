// A million random schedules of clients against their limits: each client's answers, and what dispatch has refused.
#include <map>
#include <random>
#include <set>

#include "../../../csrc/engine/privacy.h"
#include "check.h"
#include "server.h"

using namespace fastagg;
using namespace fastagg::engine;

namespace {

constexpr int kSchedules = 1'000'000, kTogether = 1000, kActs = 12;
constexpr int64_t kBuffer = 3;

std::shared_ptr<Engine> private_server(int64_t separation, int64_t most) {
  const auto memory = store::host_memory();
  Settings settings;
  settings.size = 1;
  Privacy::Setting privacy;
  privacy.noise = 1.0, privacy.separation = separation, privacy.most = most;
  auto direction = std::make_shared<Buffered>(1.0, Buffered::Setting{kBuffer, false, 1}, memory, privacy);
  OptimizerSettings optimizer;
  optimizer.kind = place_in<Sgd>(Optimizers{});
  store::Vector model = memory->vector(1);
  *model.data = 0.0f;
  return std::make_shared<Engine>(settings, direction, optimizer, 1, memory, std::make_shared<OnCpu>(), nullptr, model);
}

// The next life of a server: another one, with the same ledger.
std::shared_ptr<Engine> restarted(const Engine& before, int64_t separation, int64_t most) {
  auto next = private_server(separation, most);
  next->ledger().load(before.ledger().state());
  return next;
}

struct Client {
  int64_t answers = 0, last = 0;
  std::set<int64_t> owes;
};

// Schedules of a thousand pairs of clients on one server, one after the other.
void schedules(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto separation = static_cast<int64_t>(1 + random() % 4), most = static_cast<int64_t>(1 + random() % 4);
  auto engine = private_server(separation, most);
  const std::vector<float> update{1.0f};
  int64_t refusals = 0, counted = 0;
  for (int64_t pair = 0; pair < kTogether; ++pair) {
    Client clients[2];
    for (int act = 0; act < kActs; ++act) {
      const auto which = static_cast<int64_t>(random() % 2);
      Client& one = clients[which];
      const ClientId id = ClientId::of(2 * pair + which);
      const int64_t now = engine->ledger().now;
      const uint64_t what = random() % 32;
      if (what < 16) {
        bool waits = false;
        for (const int64_t version : one.owes) waits = waits || version != now;
        const bool wrong =
            waits || one.answers >= most || (one.answers > 0 && engine->ledger().steps - one.last < separation);
        bool refused = false;
        try {
          engine->dispatch(id);
          one.owes.insert(now);
        } catch (const Refusal& why) {
          CHECK(why.why == Why::kTooSoon);
          refused = true;
        }
        CHECK(refused == wrong);
        refusals += refused;
      } else if (what < 29 && !one.owes.empty()) {
        CHECK(one.answers < most);
        CHECK(one.answers == 0 || engine->ledger().steps - one.last >= separation);
        one.last = engine->ledger().steps, ++one.answers, ++counted;
        Answer answer = answer_of(id.number, *one.owes.begin(), update);
        const auto result = engine->receive(&answer, 1);
        CHECK(result.done == 1);
        one.owes.erase(one.owes.begin());
      } else if (what == 29 && !one.owes.empty()) {
        engine->forget(id, std::nullopt);
        one.owes.clear();
      } else if (what == 30 && random() % 64 == 0) {
        engine = restarted(*engine, separation, most);
      }
    }
  }
  CHECK(refusals > kTogether / 8 && counted > kTogether / 2);
}

}  // namespace

void participations() {
  for (uint64_t seed = 0; seed < kSchedules / kTogether; ++seed) schedules(seed);
}
