// The ledger against a map, under random operations.
#include "../../../csrc/engine/ledger.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "../../../csrc/refusal.h"
#include "check.h"

using namespace fastagg;
using engine::Ledger;

namespace {

struct Client {
  int64_t last = -1;
  std::map<int64_t, double> ends;  // by version: when its lease is over
};

ClientId client_of(uint64_t which) {
  if (which % 3 == 0) return ClientId::of(static_cast<int64_t>(which));
  if (which % 3 == 1) return {ClientId::kName, 0, "client " + std::to_string(which)};
  return {ClientId::kLarge, static_cast<int64_t>((uint64_t{1} << 63) + which), {}};
}

template <typename Act>
bool refused(Act act, Why why) {
  try {
    act();
  } catch (const Refusal& refusal) {
    CHECK(refusal.why == why);
    return true;
  }
  return false;
}

void walk(uint64_t seed, bool expires, int steps) {
  std::mt19937_64 random(seed);
  Ledger ledger(-1, true);
  ledger.given_time = 0.0;
  ledger.limits.clients = 12, ledger.limits.open_per_client = 3;
  if (expires) ledger.limits.lease = 50.0, ledger.limits.max_delay = 20;
  std::map<ClientId, Client> model;
  std::vector<std::pair<int64_t, uint64_t>> begun;
  int64_t ended = 0, sent = 0, busy = 0;
  const auto over = [&](int64_t version, double ends) {
    return expires && (ends <= ledger.given_time || version < ledger.now - ledger.limits.max_delay);
  };
  for (int step = 0; step < steps; ++step) {
    const ClientId id = client_of(random() % 20);
    const auto known = model.find(id);
    const uint64_t act = random() % 16;
    if (act < 6) {
      const auto own = known == model.end() ? 0 : known->second.ends.size();
      const bool again = known != model.end() && known->second.ends.count(ledger.now) > 0;
      const bool full = !again && ((known == model.end() && model.size() >= 12) || own >= 3);
      const auto kept = store::new_vector(1);
      CHECK(refused([&] { ledger.send(id, ledger.now, 1, kept); }, Why::kBusy) == full);
      busy += full, sent += !full;
      if (!full) model[id].last = ledger.now, model[id].ends[ledger.now] = ledger.given_time + ledger.limits.lease;
    } else if (act < 10) {
      const bool latest = random() % 2 == 0;
      const int64_t version = latest ? Ledger::kLast : ledger.now - static_cast<int64_t>(random() % 4);
      if (version < Ledger::kLast) continue;
      const Why why = known == model.end() ? Why::kUnknownClient : Why::kUnknownVersion;
      const int64_t meant = known == model.end() || version != Ledger::kLast ? version : known->second.last;
      const bool open =
          known != model.end() && known->second.ends.count(meant) > 0 && !over(meant, known->second.ends.at(meant));
      Ledger::Found found{};
      CHECK(refused([&] { found = ledger.find(id, version); }, why) == !open);
      if (!open) continue;
      CHECK(found.version == meant);
      ledger.close(found.client, found.version);
      known->second.ends.erase(meant);
    } else if (act == 10) {
      CHECK(refused([&] { ledger.forget(id); }, Why::kUnknownClient) == (known == model.end()));
      if (known != model.end()) model.erase(known);
    } else if (act == 11 && random() % 8 == 0) {
      const int64_t before = ledger.now - 2;
      int64_t count = 0;
      for (auto& [_, one] : model)
        while (!one.ends.empty() && one.ends.begin()->first < before) one.ends.erase(one.ends.begin()), ++count;
      CHECK(ledger.expire_before(before) == count);
      ended += count;
    } else if (act == 12) {
      if (random() % 8 != 0) continue;
      const uint64_t number = random() % 1000;
      ledger.begin_incarnation(ledger.now, number);
      begun.emplace_back(ledger.now, number);
    } else if (act == 13) {
      ledger.given_time += static_cast<double>(random() % 10);
    } else {
      ++ledger.now;
    }
    while (const auto one = ledger.overdue()) {
      ledger.pass(*one);
      if (!one->ends && !one->forgets) continue;
      Client& its = model.at(one->client);
      if (one->ends) {
        CHECK(over(one->version, its.ends.at(one->version)));
        its.ends.erase(one->version), ++ended;
      }
      if (!one->forgets) continue;
      CHECK(its.ends.empty());
      model.erase(one->client);
    }
    int64_t open = 0;
    std::set<int64_t> versions;
    for (const auto& [client, one] : model) {
      std::vector<int64_t> owed = ledger.owed(client);
      std::sort(owed.begin(), owed.end());
      CHECK(owed.size() == one.ends.size());
      size_t place = 0;
      for (const auto& [version, ends] : one.ends) {
        CHECK(owed[place++] == version && !over(version, ends));
        versions.insert(version);
        uint64_t number = 0;
        for (const auto& [first, its] : begun)
          if (first <= version) number = its;
        CHECK(ledger.incarnation_of(version) == number);
      }
      open += static_cast<int64_t>(owed.size());
    }
    CHECK(ledger.open_tasks() == open && ledger.known() == static_cast<int64_t>(model.size()));
    CHECK(ledger.expired() == ended && ledger.all_kept().size() == versions.size());
    for (const int64_t version : versions) CHECK(ledger.kept(version));
    if (step % 500 != 499) continue;
    Ledger loaded(-1, true);
    loaded.load(ledger.state());
    CHECK(loaded.open_tasks() == open && loaded.known() == ledger.known() && loaded.now == ledger.now);
  }
  CHECK(sent > 0 && busy > 0 && (ended > 0));
}

// Many clients, most of which are forgotten again: what is kept of the others stays, and the memory is given back.
void crowd(uint64_t seed, bool expires) {
  std::mt19937_64 random(seed);
  Ledger ledger(-1, false);
  ledger.given_time = 0.0;
  if (expires) ledger.limits.lease = 1000.0;
  std::map<ClientId, std::pair<int64_t, std::set<int64_t>>> model;  // the version sent last, and those owed
  const auto any = [&] {                                            // numbers in a row, far apart, negative, and names
    const uint64_t which = random() % 10000;
    return which % 4 == 0 ? client_of(which * 3 + 1) : ClientId::of(static_cast<int64_t>(which << 8 * (which % 8)));
  };
  const auto agree = [&] {
    CHECK(ledger.known() == static_cast<int64_t>(model.size()));
    for (const auto& [id, one] : model) {
      std::vector<int64_t> owed = ledger.owed(id);
      CHECK(std::set<int64_t>(owed.begin(), owed.end()) == one.second && owed.size() == one.second.size());
      if (one.second.count(one.first)) CHECK(ledger.find(id, Ledger::kLast).version == one.first);
      CHECK(ledger.local_steps(id, 7) == static_cast<int32_t>(1 + one.first));
    }
  };
  int64_t largest = 0;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 30000; ++i) {
      const ClientId id = any();
      const int64_t client = ledger.send(id, ledger.now, 1, {});
      ledger.tell_next(client, static_cast<int32_t>(1 + ledger.now));
      auto& one = model[id];
      one.first = ledger.now, one.second.insert(ledger.now);
      if (random() % 3 != 0) ledger.close(client, ledger.now), one.second.erase(ledger.now);
      ledger.now += random() % 1000 == 0;
      ledger.given_time += 1e-4;
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
      CHECK(ledger.owes(id, ledger.now) == (model.count(id) > 0 && model[id].second.count(ledger.now) > 0));
    }
  }
  if (!expires) {
    for (const auto& [id, _] : model) ledger.forget(id);
    model.clear();
    agree();
    return;
  }
  CHECK(ledger.nbytes() > 0 && largest > 0);
  ledger.given_time += 2000.0;  // all leases are over
  while (const auto one = ledger.overdue()) ledger.pass(*one);
  CHECK(ledger.known() == 0 && ledger.open_tasks() == 0);
}

}  // namespace

void ledgers() {
  for (const uint64_t seed : {1, 2, 3})
    for (const bool expires : {false, true}) crowd(seed, expires);
  for (const uint64_t seed : {1, 2, 3, 4, 5})
    for (const bool expires : {false, true}) walk(seed, expires, 4000);
}
