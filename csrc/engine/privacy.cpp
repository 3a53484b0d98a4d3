#include "privacy.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "../math/exponential.h"
#include "../math/noise.h"

namespace fastagg::engine {
namespace {

// The uses of a version's key: noise on elements, noise on a count, encryption. Each number is the nonce of a stream.
enum NoiseUse : uint64_t { kElements = 0, kCount, kStored };

// `key_id` uses this number in place of an incarnation. Incarnations have 63 bits, so none has this number.
constexpr uint64_t kNobody = UINT64_MAX;

double normal_of(const ChaChaKey& key) {
  uint32_t words[16];
  chacha_words(key, 0, kCount, words);
  float first = 0.0f, second = 0.0f;
  normal_pair<ChaChaScalar>(words[0], words[1], first, second);
  return first;
}

double exp_of(double x) { return x <= 0.0 ? exp_negative(x) : 1.0 / exp_negative(-x); }

}  // namespace

Privacy::Privacy(Setting chosen, int64_t size, const std::shared_ptr<store::Memory>& memory)
    : setting(std::move(chosen)), size_(size), memory_(memory), clip_(setting.clip) {
  if (setting.omega.size() != setting.theta.size() || setting.omega.size() > kMostPast)
    throw std::invalid_argument("correlated noise: omega and theta");
  for (size_t i = 0; i < setting.omega.size(); ++i) {
    sums_.push_back(memory->vector(size));
    memory->zero(sums_.back().data, size * static_cast<int64_t>(sizeof(float)));
  }
}

int64_t Privacy::key_id() const {
  uint32_t words[16];
  chacha_words(key_, kNobody, kNobody, words);
  return static_cast<int64_t>(words[0]) << 31 ^ words[1];
}

void Privacy::begin(uint64_t incarnation, int64_t version) {
  next_ = {static_cast<int64_t>(incarnation), version};
  step_key_ = derived(key_, incarnation, static_cast<uint64_t>(version));
}

// Plans the next clipping norm (Andrew et al. 2021, Algorithm 1). An update whose gain is 1 was not clipped.
void Privacy::plan(const Contributions& contributions, bool steps, int64_t count) {
  within_next_ = within_, clip_next_ = clip_;
  for (const Contribution& contribution : contributions) within_next_ += contribution.gain == 1.0;
  if (!steps || setting.rate == 0.0) return;
  const double noisy = static_cast<double>(within_next_) + setting.count_noise * normal_of(step_key_);
  const double moves = -setting.rate * (noisy / static_cast<double>(count) - setting.quantile);
  clip_next_ = std::min(std::max(clip_ * exp_of(std::min(std::max(moves, -50.0), 50.0)), 0x1p-60), 0x1p60);
}

Noise Privacy::noise(double divisor) const {
  Noise noise;
  noise.key = step_key_;
  noise.deviation = static_cast<float>(setting.noise * clip_);
  noise.scale = static_cast<float>(1.0 / divisor);
  for (size_t i = 0; i < sums_.size(); ++i)
    noise.past[noise.count++] = {sums_[i].data, static_cast<float>(setting.omega[i]),
                                 static_cast<float>(setting.theta[i])};
  return noise;
}

// Correlated noise is a weighted sum of the noise of all steps so far. The magnitudes of the weights have a sum of at
// most 2 (privacy.py).
double Privacy::bound(double divisor) const {
  return kLargestNormal * setting.noise * clip_ / divisor * (sums_.empty() ? 1.0 : 2.0);
}

void Privacy::commit(bool stepped) noexcept {
  within_ = stepped ? 0 : within_next_;
  if (!stepped) return;
  clip_ = clip_next_;
  last_ = next_;
}

void Privacy::fields(Archive& archive) {
  if (!archive.has("noise_key")) throw std::invalid_argument("it is of a server without privacy");
  int64_t id = key_id();
  archive.field("noise_key", id);
  archive.field("clip", clip_);
  archive.field("within", within_);
  archive.field("noise_incarnation", last_.incarnation);
  archive.field("noise_version", last_.number);
  if (!archive.loads) return stored_sums(archive);
  if (setting.rate == 0.0) clip_ = setting.clip;
  if (!(clip_ >= 0x1p-60 && clip_ <= 0x1p60) || within_ < 0 || last_.number < 0)
    throw std::invalid_argument("a clipping norm, or a count");
  if (sums_.empty() || last_.number == 0) return;
  if (id != key_id())
    throw std::invalid_argument(
        "its noise follows that of earlier steps, which needs the key of the server that made it, and no checkpoint "
        "has that; fastagg.open() keeps one in its folder");
  stored_sums(archive);
}

// Saves or loads past noise, encrypted, because past noise reveals the noise of earlier versions. The cipher's key
// follows from the version of the noise. So no part of the cipher's stream encrypts two contents.
void Privacy::stored_sums(Archive& archive) {
  const ChaChaKey key = derived(key_, static_cast<uint64_t>(last_.incarnation), static_cast<uint64_t>(last_.number));
  const int64_t nbytes = size_ * static_cast<int64_t>(sizeof(float));
  std::vector<float> here(static_cast<size_t>(size_));
  for (size_t k = 0; k < sums_.size(); ++k) {
    const store::Vector copy = archive.loads ? sums_[k] : memory_->vector(size_);
    const std::string name = "noise_" + std::to_string(k);
    if (archive.loads && !archive.vector(name.c_str(), copy, size_, true)) throw std::invalid_argument("past noise");
    memory_->get(here.data(), sums_[k].data, nbytes);
    for (int64_t at = 0; at < size_; at += 16) {
      uint32_t words[16];
      chacha_words(key, static_cast<uint64_t>(at / 16), kStored + k, words);
      for (int64_t i = at; i < std::min(size_, at + 16); ++i) {
        float& element = here[static_cast<size_t>(i)];
        element = float_from_bits(bits_of(element) ^ words[i - at]);
      }
    }
    memory_->put(copy.data, here.data(), nbytes);
    if (!archive.loads) archive.vector(name.c_str(), copy, size_, last_.number > 0);
  }
}

}  // namespace fastagg::engine
