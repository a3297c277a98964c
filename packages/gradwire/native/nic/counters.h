// A NIC's counters for each direction. Python reads them while the threads count.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gradwire::nic {

enum class Count : std::size_t {
  frames_in,
  bytes_in,
  frames_out,
  bytes_out,
  compressed,        // packets sent compressed
  restored,          // compressed packets received and restored
  payload_bytes,     // payload of these packets on the hosts
  body_bytes,        // bodies of these packets on the link, with the shim
  offers,            // handshakes with this NIC's option, or with the peer's
  other_codec,       // handshakes with a NIC with different settings
  raw_other,         // not TCP over IPv4, or with another type of service
  raw_empty,         // marked packets without data, such as acknowledgements
  raw_unseen,        // the start of the connection was not observed
  raw_no_peer,       // the peer has no NIC, or a NIC with different settings
  raw_larger,        // packets that compression would not shrink
  raw_repeated,      // packets retransmitted too often
  raw_bad_checksum,  // already wrong when the host sent the packet
  raw_arrived,       // marked data that arrived uncompressed
  malformed,         // compressed packets that failed their checks and were dropped
  faults_dropped,
  faults_reordered,
  unsent,            // refused by the interface, or too long for it
  count
};

inline constexpr std::size_t kCounts = static_cast<std::size_t>(Count::count);
inline constexpr std::array<const char*, kCounts> kCountNames = {
    "frames_in",    "bytes_in",    "frames_out",   "bytes_out",        "compressed",  "restored",
    "payload_bytes", "body_bytes", "offers",       "other_codec",      "raw_other",   "raw_empty",
    "raw_unseen",   "raw_no_peer", "raw_larger",   "raw_repeated",     "raw_bad_checksum", "raw_arrived",
    "malformed",    "faults_dropped", "faults_reordered", "unsent",
};

class Counters {
 public:
  void add(Count which, std::uint64_t by = 1) {
    values_[static_cast<std::size_t>(which)].fetch_add(by, std::memory_order_relaxed);
  }
  std::uint64_t operator[](std::size_t which) const { return values_[which].load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<std::uint64_t>, kCounts> values_{};
};

}  // namespace gradwire::nic
