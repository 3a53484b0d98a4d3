#include "clients.h"

#include <stdexcept>

#include "../refusal.h"

namespace fastagg::engine {
namespace {

// An id that is a number of 2^63 or more is stored as a name that begins with this byte. UTF-8 text never contains the
// byte, so no client's name is equal to such a stored number.
constexpr char kLargeNumber = '\xff';
constexpr int32_t kNone = -1;

std::string key_of(const ClientId& id) {
  return id.kind == ClientId::kName ? id.name : kLargeNumber + std::to_string(static_cast<uint64_t>(id.number));
}

}  // namespace

// Returns the index entry where the search for a number begins. The bits are mixed, so that consecutive numbers and
// multiples of a power of two are spread over the index.
size_t Clients::home(int64_t number) const {
  uint64_t mixed = static_cast<uint64_t>(number) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93u;
  return static_cast<size_t>(mixed ^ mixed >> 32) & (index_.size() - 1);
}

size_t Clients::entry_of(int64_t number) const {
  size_t entry = home(number);
  while (index_[entry] != kNone && ids_[static_cast<size_t>(index_[entry])] != number)
    entry = (entry + 1) & (index_.size() - 1);
  return entry;
}

void Clients::check(const ClientId& id) const {
  if (numbered_ >= 0 && (id.kind != ClientId::kNumber || id.number < 0 || id.number >= numbered_))
    throw Refusal(Why::kUnknownClient,
                  "client " + shown(id) + ": expected 0.." + std::to_string(numbered_ - 1) + " (num_clients)");
}

int64_t Clients::find(const ClientId& id) const {
  if (numbered_ >= 0) return check(id), id.number;
  if (id.kind == ClientId::kNumber) return index_.empty() ? kNone : index_[entry_of(id.number)];
  const auto entry = names_.find(key_of(id));
  return entry == names_.end() ? kNone : entry->second.place;
}

const Clients::Names::value_type& Clients::name_at(int64_t place) const {
  return *reinterpret_cast<const Names::value_type*>(ids_[static_cast<size_t>(place)]);
}

int64_t Clients::token(int64_t place) const {
  if (numbered_ >= 0) return place;
  return named_[static_cast<size_t>(place)] ? INT64_MIN + name_at(place).second.life : ids_[static_cast<size_t>(place)];
}

namespace {

// Returns the mark of an id. Two different ids rarely have the same mark. No id has the mark 0 ("no client").
template <typename Id>
uint32_t marked(const Id& id) {
  const uint64_t bits = std::hash<Id>{}(id);
  const auto mark = static_cast<uint32_t>((bits ^ bits >> 32) * 0x9E3779B97F4A7C15ull >> 32);
  return mark != 0 ? mark : 1;
}

}  // namespace

uint32_t Clients::mark(const ClientId& id) {
  return id.kind == ClientId::kNumber ? marked(id.number) : marked(key_of(id));
}

uint32_t Clients::mark(int64_t place) const noexcept {
  if (numbered_ >= 0) return marked(place);
  return named_[static_cast<size_t>(place)] ? marked(name_at(place).first) : marked(ids_[static_cast<size_t>(place)]);
}

ClientId Clients::at(int64_t place) const {
  if (numbered_ >= 0) return ClientId::of(place);
  if (!named_[static_cast<size_t>(place)]) return ClientId::of(ids_[static_cast<size_t>(place)]);
  const std::string& name = name_at(place).first;
  if (name.empty() || name.front() != kLargeNumber) return {ClientId::kName, 0, name};
  return {ClientId::kLarge, static_cast<int64_t>(std::stoull(name.substr(1))), {}};
}

// Doubles the index, which has 16 entries at first. Only clients whose ids are numbers are in the index. In `ids_`
// these clients have numbers, never addresses, so `entry_of` may compare the elements of `ids_` with a number.
void Clients::grow() {
  std::vector<int32_t> before(index_.empty() ? 16 : 2 * index_.size(), kNone);
  before.swap(index_);
  for (const int32_t place : before)
    if (place != kNone) index_[entry_of(ids_[static_cast<size_t>(place)])] = place;
}

int64_t Clients::add(const ClientId& id) {
  const bool is_new = free_ < 0;
  if (is_new && ids_.size() >= INT32_MAX) throw std::length_error("more than 2^31 - 1 clients");
  if (id.kind == ClientId::kNumber && 8 * (numbers_ + 1) > 7 * index_.size()) grow();
  if (is_new) {
    if (named_.capacity() == named_.size()) named_.reserve(2 * named_.size() + 64);
    ids_.push_back(-1);
    named_.push_back(false);
  }
  const int64_t place = is_new ? static_cast<int64_t>(ids_.size()) - 1 : free_;
  int64_t& own = ids_[static_cast<size_t>(place)];
  const int64_t next = own;
  if (id.kind == ClientId::kNumber) {
    const size_t entry = entry_of(id.number);
    index_[entry] = static_cast<int32_t>(place);
    ++numbers_;
    own = id.number;
  } else {
    try {
      own = reinterpret_cast<int64_t>(&*names_.emplace(key_of(id), Name{static_cast<int32_t>(place), lives_}).first);
      ++lives_;
    } catch (...) {
      if (is_new) ids_.pop_back(), named_.pop_back();
      throw;
    }
  }
  if (!is_new) free_ = next;
  named_[static_cast<size_t>(place)] = id.kind != ClientId::kNumber;
  return place;
}

void Clients::remove(int64_t place) noexcept {
  int64_t& own = ids_[static_cast<size_t>(place)];
  if (named_[static_cast<size_t>(place)]) {
    names_.erase(names_.find(name_at(place).first));
  } else {
    // A search ends at an empty entry. So a later entry is moved into the gap if a search for it would end at the gap.
    const size_t mask = index_.size() - 1;
    size_t gap = entry_of(own);
    for (size_t next = (gap + 1) & mask; index_[next] != kNone; next = (next + 1) & mask) {
      const size_t from = home(ids_[static_cast<size_t>(index_[next])]);
      if (((next - from) & mask) < ((next - gap) & mask)) continue;
      index_[gap] = index_[next];
      gap = next;
    }
    index_[gap] = kNone;
    --numbers_;
  }
  own = free_;
  free_ = place;
}

int64_t Clients::nbytes() const {
  // std::unordered_map takes two words for each entry besides key and value, and a word for each bucket.
  const size_t entry = sizeof(std::string) + sizeof(int64_t) + 2 * sizeof(void*);
  return static_cast<int64_t>(ids_.size() * sizeof(int64_t) + named_.size() / 8 + index_.size() * sizeof(int32_t) +
                              names_.size() * entry + (names_.empty() ? 0 : names_.bucket_count() * sizeof(void*)));
}

}  // namespace fastagg::engine
