#include "slots.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "../cpu/pool.h"
#include "sync.h"

namespace fastagg::store {
namespace {

void mark(std::vector<bool>& slots, const Slots::Places& places) {
  for (const int64_t slot : places)
    if (slot >= 0 && slot < static_cast<int64_t>(slots.size())) slots[static_cast<size_t>(slot)] = true;
}

}  // namespace

void RowShape::sums(const Row& row, uint32_t* found) const {
  auto one = [&](int64_t window) { found[window] = sum(part(row, window), window); };
  cpu::parallel(windows(), stride(), one);
}

Slots::Slots(const RowShape& of_rows, int64_t clients, std::string at)
    : shape(of_rows), path(std::move(at)), places_(static_cast<size_t>(clients), -1) {}

void Slots::take(int file) {
  close();
  file_ = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (file_ < 0) fail("rows cannot be opened", errno);
}

void Slots::close() noexcept {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

void Slots::fail(const char* what, int error) const {
  throw RowsFailed(path + ": " + what + ": " + (error == 0 ? "the file ends before it" : std::strerror(error)));
}

// The system may move less than it is asked to.
template <typename Call>
void Slots::transfer(Call call, const char* what, int64_t at, int64_t size, void* memory) const {
  for (int64_t done = 0; done < size;) {
    const ssize_t count =
        call(file_, static_cast<char*>(memory) + done, static_cast<size_t>(size - done), static_cast<off_t>(at + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(what, count == 0 ? 0 : errno);
    done += count;
  }
}

// -- what is read

Row Slots::read(int64_t client, const Block& into) {
  transfer(pread, "a row cannot be read", of(client) * shape.stride(), shape.stride(), into.get());
  bytes_read += shape.stride();
  const Row row = shape.row_at(into.get());
  std::vector<uint32_t> found(static_cast<size_t>(shape.windows()));
  shape.sums(row, found.data());
  if (!std::equal(found.begin(), found.end(), sums(of(client)))) refuse_damaged(client);
  return row;
}

Row Slots::read(int64_t client, int64_t window, char* into) {
  const Row part = shape.part_at(into, window);
  const int64_t count = shape.elements(window), begin = of(client) * shape.stride();
  transfer(pread, "a row cannot be read", begin + shape.data_at(window), shape.data_bytes(count), part.data);
  transfer(pread, "a row cannot be read", begin + shape.scales_at(window), shape.scale_bytes(count), part.scales);
  bytes_read += shape.part_bytes();
  if (shape.sum(part, window) != sums(of(client))[window]) refuse_damaged(client);
  return part;
}

void Slots::refuse_damaged(int64_t client) const {
  throw RowDamaged(client, path + ": client " + std::to_string(client) + "'s row is damaged (slot " +
                               std::to_string(of(client)) + "): its checksum is another");
}

void Slots::ask_ahead([[maybe_unused]] int64_t client, [[maybe_unused]] int64_t offset,
                      [[maybe_unused]] int64_t size) const noexcept {
#if defined(POSIX_FADV_WILLNEED)
  constexpr int64_t kAtOnce = int64_t{128} << 10;  // of more the system reads only the begin
  if (!has(client)) return;
  for (int64_t at = of(client) * shape.stride() + offset; size > 0; at += kAtOnce, size -= kAtOnce)
    posix_fadvise(file_, static_cast<off_t>(at), static_cast<off_t>(std::min(kAtOnce, size)), POSIX_FADV_WILLNEED);
#endif
}

// -- what is written

void Slots::reserve() {
  if (!free_.empty()) return;
  const auto end = static_cast<off_t>(nbytes_on_disk()), more = static_cast<off_t>(shape.stride());
  int error = EOPNOTSUPP;
#if defined(__linux__)
  error = fallocate(file_, 0, end, more) == 0 ? 0 : errno;
#endif
  if (error == EOPNOTSUPP) error = ftruncate(file_, end + more) == 0 ? 0 : errno;
  if (error != 0) {
    [[maybe_unused]] const int back = ftruncate(file_, end);
    fail("no room for another row", error);
  }
  const size_t slots = kept_.size();
  if (free_.capacity() <= slots) free_.reserve(2 * slots + 16);
  sums_.resize((slots + 1) * static_cast<size_t>(shape.windows()));
  kept_.push_back(false);
  free_.push_back(static_cast<int64_t>(slots));
}

void Slots::move(int64_t client) noexcept {
  const int64_t slot = free_.back();
  free_.pop_back();
  drop(client);
  places_[static_cast<size_t>(client)] = slot;
}

void Slots::drop(int64_t client) noexcept {
  const int64_t slot = std::exchange(places_[static_cast<size_t>(client)], -1);
  if (slot >= 0 && !kept_[static_cast<size_t>(slot)]) free_.push_back(slot);
}

void Slots::put(int64_t client, const Block& row) {
  transfer(pwrite, "a row cannot be written", of(client) * shape.stride(), shape.stride(), row.get());
  bytes_written += shape.stride();
}

void Slots::write(int64_t client, const Block& row) {
  shape.sums(shape.row_at(row.get()), sums(of(client)));
  put(client, row);
}

// -- checkpoints

void Slots::sync() {
  const std::lock_guard<std::recursive_mutex> lock(syncs_);
  const bool before = std::exchange(synced_, false);
  if (sync_data(file_) != 0) fail("rows cannot be synced", errno);
  synced_ = before;
}

// The system takes what a failed sync left behind for written, and a later sync succeeds without it. So every row that
// no successful sync has seen is written again: those of no checkpoint.
Slots::Cut Slots::cut() {
  const std::lock_guard<std::recursive_mutex> lock(syncs_);  // else one of two could take the other's failure for none
  const Block row = synced_ ? Block() : block_of(static_cast<size_t>(shape.stride()));
  for (int64_t client = 0; client < clients() && !synced_; ++client)
    if (has(client) && !kept_[static_cast<size_t>(of(client))]) read(client, row), put(client, row);
  synced_ = true;
  sync();
  Cut found{places_, {}};
  for (const int64_t slot : places_)
    if (slot >= 0) found.sums.insert(found.sums.end(), sums(slot), sums(slot) + shape.windows());
  mark(kept_, places_);
  return found;
}

void Slots::keep(const std::vector<Places>& cuts) {
  std::vector<bool> kept(kept_.size());
  for (const Places& one : cuts) mark(kept, one);
  std::vector<bool> used = kept;
  mark(used, places_);
  Places unused;
  unused.reserve(used.size());
  for (size_t slot = used.size(); slot-- > 0;)
    if (!used[slot]) unused.push_back(static_cast<int64_t>(slot));
  kept_.swap(kept);
  free_.swap(unused);
}

void Slots::load(const Cut& cut, const std::vector<Places>& kept) {
  struct stat facts{};
  if (fstat(file_, &facts) != 0) fail("rows cannot be opened", errno);
  const auto there = static_cast<size_t>(facts.st_size / shape.stride()),
             windows = static_cast<size_t>(shape.windows());
  std::vector<bool> used(there);
  std::vector<uint32_t> found(there * windows);
  size_t at = 0;
  for (const int64_t place : cut.places) {
    if (place < 0) continue;
    const auto slot = static_cast<size_t>(place);
    if (slot >= there || used[slot] || at + windows > cut.sums.size())
      throw std::invalid_argument("a row lies where none can be");
    used[slot] = true;
    std::copy_n(&cut.sums[at], windows, &found[slot * windows]);
    at += windows;
  }
  if (cut.places.size() != places_.size() || at != cut.sums.size())
    throw std::invalid_argument("rows of another number of clients or parameters");
  places_ = cut.places;
  sums_.swap(found);
  kept_.swap(used);
  keep(kept);
}

int64_t Slots::nbytes() const {
  return static_cast<int64_t>((places_.size() + free_.capacity()) * sizeof(int64_t) + sums_.size() * sizeof(uint32_t) +
                              kept_.size() / 8);
}

}  // namespace fastagg::store
