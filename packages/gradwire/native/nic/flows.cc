#include "flows.h"

#include <algorithm>

namespace gradwire::nic {

namespace {

constexpr std::size_t kMostFlows = 4096;
constexpr int kMostRepeats = 3;
constexpr std::uint32_t kMostRawNbytes = 1U << 28;

// Sequence numbers wrap around.
bool is_before(std::uint32_t one, std::uint32_t other) { return static_cast<std::int32_t>(one - other) < 0; }

}  // namespace

FlowKey key_of_sent(const Packet& packet) {
  return {packet.source(), packet.destination(), packet.source_port() << 16 | packet.destination_port()};
}

FlowKey key_of_received(const Packet& packet) {
  return {packet.destination(), packet.source(), packet.destination_port() << 16 | packet.source_port()};
}

bool Patience::allows(std::uint32_t sequence, std::size_t nbytes) {
  const std::uint32_t end = sequence + static_cast<std::uint32_t>(nbytes);
  if (!has_begun_ || !is_before(sequence, end_)) {
    has_begun_ = true;
    end_ = end;
    repeats_ = 0;  // earlier data has arrived, otherwise new data would not be sent
  } else if (repeats_ > 0 && sequence == repeated_) {
    ++repeats_;
  } else {
    repeated_ = sequence;
    repeats_ = 1;
  }
  if (repeats_ >= kMostRepeats) {
    is_raw_ = true;
    repeats_ = 0;
    raw_end_ = sequence + raw_nbytes_;
    raw_nbytes_ = std::min(4 * raw_nbytes_, kMostRawNbytes);
  }
  is_raw_ = is_raw_ && is_before(sequence, raw_end_ + kMostRawNbytes);  // sequence numbers wrap around
  return !is_raw_ || !is_before(sequence, raw_end_);
}

Flow* Flows::find(const FlowKey& key) {
  const auto found = flows_.find(key);
  if (found == flows_.end()) return nullptr;
  found->second.used = ++clock_;
  return &found->second;
}

Flow& Flows::begin(const FlowKey& key) {
  if (flows_.size() >= kMostFlows && !flows_.contains(key)) {
    flows_.erase(std::min_element(flows_.begin(), flows_.end(), [](const auto& one, const auto& other) {
      return one.second.used < other.second.used;
    }));
  }
  Flow& flow = flows_[key];
  flow = Flow{};
  flow.used = ++clock_;
  return flow;
}

std::size_t Flows::Hash::operator()(const FlowKey& key) const {
  std::uint64_t mixed = (std::uint64_t{key.local} << 32 | key.remote) * 0x9E3779B97F4A7C15U;
  mixed = (mixed ^ mixed >> 29 ^ key.ports) * 0xBF58476D1CE4E5B9U;
  return static_cast<std::size_t>(mixed ^ mixed >> 32);
}

}  // namespace gradwire::nic
