#include "faults.h"

namespace gradwire::nic {

namespace {

constexpr std::size_t kMostKept = 1U << 16;
constexpr std::chrono::milliseconds kOvertaken{2};

}  // namespace

void Faults::take(const Byte* data, std::size_t size, const Offload& offload, const Emit& emit) {
  if (!settings_.any()) return emit(data, size, offload);
  if (happens(settings_.drop) || kept_.size() >= kMostKept) return counters_.add(Count::faults_dropped);
  auto due = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings_.delay_s));
  if (happens(settings_.reorder)) {
    counters_.add(Count::faults_reordered);
    due += kOvertaken;
  } else if (settings_.delay_s <= 0) {
    return emit(data, size, offload);
  }
  kept_.push({due, number_++, {data, data + size}, offload});
}

void Faults::release(const Emit& emit) {
  const auto now = Clock::now();
  for (; !kept_.empty() && kept_.top().due <= now; kept_.pop()) {
    const Kept& kept = kept_.top();
    emit(kept.data.data(), kept.data.size(), kept.offload);
  }
}

std::optional<Clock::time_point> Faults::next() const {
  if (kept_.empty()) return std::nullopt;
  return kept_.top().due;
}

// SplitMix64 (Steele, Lea and Flood 2014). A number is drawn for every share, so that the same seed drops the same
// frames.
bool Faults::happens(double share) {
  std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
  z = (z ^ z >> 27) * 0x94D049BB133111EBU;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53 < share;
}

}  // namespace gradwire::nic
