// Threads that dispatch and receive at once. Receipts tell one serial order.
#include <algorithm>
#include <set>
#include <thread>

#include "check.h"
#include "server.h"

using namespace fastagg;
using namespace fastagg::engine;

void threads() {
  constexpr int64_t kThreads = 4, kTurns = 150;
  for (const Rule rule : kRules) {
    Server server(rule, 500);
    std::vector<std::vector<Receipt>> receipts(kThreads);
    std::vector<std::thread> all;
    for (int64_t me = 0; me < kThreads; ++me)
      all.emplace_back([&, me] {
        std::mt19937_64 random(static_cast<uint64_t>(me));
        for (int64_t turn = 0; turn < kTurns; ++turn) {
          const Task task = server.engine->dispatch(ClientId::of(me));
          const std::vector<float> values = numbers(server.size, random);
          CHECK(std::isfinite(task.model.data[turn]));  // a version that was sent never changes
          Answer answer = answer_of(me, task.version, values);
          CHECK(server.engine->receive(&answer, 1).done == 1);
          receipts[static_cast<size_t>(me)].push_back(answer.receipt);
        }
      });
    for (std::thread& one : all) one.join();
    std::multiset<int64_t> versions;
    for (const auto& its : receipts) {
      CHECK(std::is_sorted(its.begin(), its.end(), [](auto& a, auto& b) { return a.version < b.version; }));
      for (const Receipt& one : its)
        if (one.applied) versions.insert(one.version);
    }
    const bool one = rule == Rule::kAsgd || rule == Rule::kAce;
    const int64_t per_step = one ? 1 : kCapacity;
    CHECK(static_cast<int64_t>(versions.size()) == kThreads * kTurns / per_step);
    int64_t next = 0;
    for (const int64_t version : versions) CHECK(version == ++next);  // each step once, and none left out
    CHECK(server.engine->ledger.now == next && server.engine->ledger.roster.tasks.count() == 0);
  }
}
