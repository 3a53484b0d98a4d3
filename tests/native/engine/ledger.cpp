// The ledger against a map, with many clients (server/test_ledger.py and test_leases.py: all that it does, with few).
#include "../../../csrc/engine/ledger.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "check.h"

using namespace fastagg;
using engine::Ids;
using engine::Ledger;

namespace {

ClientId client_of(uint64_t which) {
  if (which % 3 == 0) return ClientId::of(static_cast<int64_t>(which));
  if (which % 3 == 1) return {ClientId::kName, 0, "client " + std::to_string(which)};
  return {ClientId::kLarge, static_cast<int64_t>((uint64_t{1} << 63) + which), {}};
}

// Many clients, most of which are forgotten again: what is kept of the others stays, and the memory is given back.
void crowd(uint64_t seed, bool expires) {
  std::mt19937_64 random(seed);
  Ledger ledger(-1, false);
  if (expires) ledger.leases.limits.lease = 1000.0;
  std::map<ClientId, std::pair<int64_t, std::set<int64_t>>> model;  // the version sent last, and those owed
  const auto any = [&] {                                            // numbers in a row, far apart, negative, and names
    const uint64_t which = random() % 10000;
    return which % 4 == 0 ? client_of(which * 3 + 1) : ClientId::of(static_cast<int64_t>(which << 8 * (which % 8)));
  };
  const auto agree = [&] {
    CHECK(ledger.roster.known == static_cast<int64_t>(model.size()));
    for (const auto& [id, one] : model) {
      std::vector<int64_t> owed = ledger.roster.owed(ledger.place_of(id));
      CHECK(std::set<int64_t>(owed.begin(), owed.end()) == one.second && owed.size() == one.second.size());
      if (one.second.count(one.first)) CHECK(ledger.find(id, engine::kLastSent).version == one.first);
      CHECK(ledger.roster.local_steps(id, 7) == static_cast<int32_t>(1 + one.first));
    }
  };
  int64_t largest = 0;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 30000; ++i) {
      const ClientId id = any();
      const int64_t client = ledger.send(id, ledger.now, 1, {});
      ledger.roster.tell_next(client, static_cast<int32_t>(1 + ledger.now));
      auto& one = model[id];
      one.first = ledger.now, one.second.insert(ledger.now);
      if (random() % 3 != 0) ledger.close(client, ledger.now, Ids::kUncounted), one.second.erase(ledger.now);
      ledger.now += random() % 1000 == 0;
      ledger.leases.skew += 1e-4;
    }
    largest = std::max(largest, ledger.nbytes());
    agree();
    for (auto one = model.begin(); one != model.end();) {
      if (random() % 20 == 0) {
        ++one;
        continue;
      }
      ledger.forget(one->first);
      one = model.erase(one);
    }
    agree();
    for (int i = 0; i < 100; ++i) {
      const ClientId id = any();
      const int64_t place = ledger.roster.clients.find(id);
      const bool owes = place >= 0 && ledger.roster.tasks.find(place, ledger.now) != nullptr;
      CHECK(owes == (model.count(id) > 0 && model[id].second.count(ledger.now) > 0));
    }
  }
  if (!expires) {
    for (const auto& [id, _] : model) ledger.forget(id);
    model.clear();
    agree();
    return;
  }
  CHECK(ledger.nbytes() > 0 && largest > 0);
  ledger.leases.skew += 2000.0;  // all leases are over
  while (const auto one = ledger.overdue()) ledger.pass(*one);
  CHECK(ledger.roster.known == 0 && ledger.roster.tasks.count() == 0);
}

}  // namespace

void ledgers() {
  for (const uint64_t seed : {1, 2, 3})
    for (const bool expires : {false, true}) crowd(seed, expires);
}
