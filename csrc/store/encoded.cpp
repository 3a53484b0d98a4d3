#include "encoded.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <string>

#include "../cpu/cpu.h"
#include "../refusal.h"

namespace fastagg::store {
namespace {

constexpr char kMagic[] = {'F', 'A', 'E', 'U'};
constexpr int64_t kLargest = int64_t{1} << 40;  // the most elements of an update, so that no length in bytes overflows

[[noreturn]] void refuse(const std::string& text) { throw Refusal(Why::kEncoding, "encoded update: " + text); }

int64_t width_of(const char* type) { return type[1] - '0'; }

void check_head(const WireHead& head) {
  if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0) refuse("it does not begin with FAEU");
  if (head.version != kWireVersion) refuse("version " + std::to_string(head.version) + ", expected 1");
  if (head.format >= WireFormats::kCount) refuse("unknown format " + std::to_string(head.format));
  const auto is_zero = [](uint8_t byte) { return byte == 0; };
  if (head.zero != 0 || !std::all_of(std::begin(head.rest), std::end(head.rest), is_zero))
    refuse("bytes of the header that must be zero are not");
  const WireFacts facts = wire_facts(head.format);
  const bool counts = facts.sparse || facts.tensors;
  if (head.values >= ValueCodecs::kCount || (!facts.sparse && head.values != 0)) refuse("unknown values");
  const int64_t largest = facts.sparse ? int64_t{INT32_MAX} : kLargest;
  if (head.size < 1 || head.size > largest) refuse("a size of " + std::to_string(head.size));
  if (head.count < counts || head.count > (counts ? head.size : 0)) refuse("a count of " + std::to_string(head.count));
}

std::vector<Encoded::Array> arrays_of(const WireHead& head, int64_t* nbytes) {
  std::vector<Encoded::Array> arrays;
  int64_t end = kWireAligned;
  const auto add = [&](WirePart part, const char* type, int64_t count) {
    const int64_t begin = (end + kWireAligned - 1) / kWireAligned * kWireAligned;
    arrays.push_back({part, type, count, begin});
    end = begin + count * width_of(type);
  };
  visit_at(head.format, WireFormats{}, [&](auto format) { decltype(format)::arrays(head, add); });
  *nbytes = end;
  return arrays;
}

// Returns the first index below `count` for which `is_fit` is false. Returns `count` if there is no such index. Runs of
// 1,024 indices are checked without a branch, so that the compiler can use vector instructions.
template <typename Fit>
int64_t first_unfit(int64_t count, Fit is_fit) {
  constexpr int64_t kRun = 1024;
  int64_t begin = 0;
  for (; begin + kRun <= count; begin += kRun) {
    int32_t fit = 1;
    for (int64_t i = 0; i < kRun; ++i) fit &= static_cast<int32_t>(is_fit(begin + i));
    if (fit == 0) break;
  }
  while (begin < count && is_fit(begin)) ++begin;
  return begin;
}

WireHead head_of(const Wire& wire) {
  WireHead head;
  std::memcpy(&head, wire.bytes, sizeof head);
  return head;
}

}  // namespace

void Encoded::take(const WireHead& head, Owner memory) {
  memory_ = std::move(memory);
  bytes = data();
  format = head.format, values = head.values;
  size = head.size, count = head.count;
  for (const Array& array : arrays_of(head, &nbytes)) {
    const uint8_t* const at = bytes + array.begin;
    switch (array.part) {
      case kCodes: codes = at; break;
      case kScales: scales = reinterpret_cast<const float*>(at); break;
      case kIndices: indices = reinterpret_cast<const int32_t*>(at); break;
      case kEnds: ends = reinterpret_cast<const int64_t*>(at); break;
    }
  }
}

std::shared_ptr<Encoded> Encoded::read(const void* from, int64_t count_of_bytes, Owner owner) {
  if (count_of_bytes < kWireAligned) refuse("only " + std::to_string(count_of_bytes) + " bytes, and a header has 64");
  WireHead head;
  std::memcpy(&head, from, sizeof head);
  check_head(head);
  int64_t expected = 0;
  arrays_of(head, &expected);
  if (count_of_bytes != expected)
    refuse("its header tells of " + std::to_string(expected) + " bytes, and it has " + std::to_string(count_of_bytes));
  auto made = std::make_shared<Encoded>();
  constexpr uintptr_t kLargestItem = 8;
  if (owner && reinterpret_cast<uintptr_t>(from) % kLargestItem == 0) {
    made->take(head, Owner(std::move(owner), const_cast<void*>(from)));
  } else {
    Owner memory = new_memory(expected);
    Update bytes;
    bytes.add(from, expected, kFloat32);
    cpu::copy(bytes, 0, expected, 1, memory.get());
    std::memcpy(memory.get(), &head,
                sizeof head);  // the checked header: the sender may have changed its own bytes since the check
    made->take(head, std::move(memory));
  }
  made->check();
  return made;
}

std::shared_ptr<Encoded> Encoded::make(int format, int values, int64_t size, int64_t count) {
  WireHead head{{}, kWireVersion, static_cast<uint8_t>(format), static_cast<uint8_t>(values), 0, size, count, {}};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  check_head(head);
  int64_t nbytes = 0;
  arrays_of(head, &nbytes);
  auto made = std::make_shared<Encoded>();
  made->take(head, new_memory(nbytes));
  std::memcpy(made->data(), &head, sizeof head);
  const std::vector<Array> all = made->arrays();
  for (size_t i = 0; i < all.size(); ++i) {  // writes zeros between the arrays, because the caller writes only arrays
    const int64_t end = i + 1 < all.size() ? all[i + 1].begin : nbytes;
    const int64_t begin = std::max(all[i].begin, end - 4 * kScaleBlock);
    std::memset(made->data() + begin, 0, static_cast<size_t>(end - begin));
  }
  return made;
}

void Encoded::check() const {
  for (const Array& array : arrays()) {
    if (array.part != kScales) continue;
    const auto is_fit = [from = scales](int64_t i) { return (from[i] >= 0.0f) & (from[i] <= FLT_MAX); };
    if (const int64_t i = first_unfit(array.count, is_fit); i < array.count)
      refuse("a scale of " + std::to_string(scales[i]) + ", expected a finite one that is not negative");
  }
  if (indices != nullptr) {
    int64_t k = first_unfit(count - 1, [from = indices](int64_t i) { return from[i] < from[i + 1]; });
    if (k < count - 1 || indices[0] < 0 || indices[k] >= size) {
      k = indices[0] < 0 ? 0 : std::min(k + 1, count - 1);
      refuse("an index of " + std::to_string(indices[k]) + ": expected indices below " + std::to_string(size) +
             " that rise, each once");
    }
  }
  int64_t last = 0;
  for (int64_t k = 0; ends != nullptr && k < count; last = ends[k++])
    if (ends[k] <= last || ends[k] > size) refuse("arrays whose ends do not rise to its size");
  if (ends != nullptr && last != size) refuse("arrays that end before its size");
  if (wire_facts(format).row < 0 || padded(size) == size) return;
  // A format that is also a format of stored rows must have zeros behind the last element, up to a whole scale block.
  const int64_t begin = size / kScaleBlock * kScaleBlock;
  float last_ones[kScaleBlock];
  cpu::decode(*this, begin, last_ones, kScaleBlock);
  const auto is_zero = [](float value) { return value == 0.0f; };
  if (!std::all_of(last_ones + (size - begin), last_ones + kScaleBlock, is_zero))
    refuse("numbers behind its last element");
}

std::vector<Encoded::Array> Encoded::layout(const void* from, int64_t* nbytes) {
  WireHead head;
  std::memcpy(&head, from, sizeof head);
  check_head(head);
  return arrays_of(head, nbytes);
}

std::vector<Encoded::Array> Encoded::arrays() const {
  int64_t whole = 0;
  return arrays_of(head_of(*this), &whole);
}

Update Encoded::update() const {
  Update made;
  made.add(static_cast<const Wire*>(this), size, kEncoded);
  return made;
}

double Encoded::squares() const {
  double sum = squares_.load(std::memory_order_relaxed);
  if (std::isnan(sum)) squares_.store(sum = cpu::sum_squares(update()), std::memory_order_relaxed);
  return sum;
}

std::shared_ptr<const Encoded> encoded_in(const Update& update) {
  const auto* const wire = static_cast<const Wire*>(update.pieces.front().data);
  return static_cast<const Encoded*>(wire)->shared_from_this();
}

}  // namespace fastagg::store
