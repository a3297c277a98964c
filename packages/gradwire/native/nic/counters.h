// The counters of a NIC for each direction. Python reads while the threads count.
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
  compressed,        // packets that left compressed
  restored,          // compressed packets that arrived, and were restored
  payload_bytes,     // of those packets as the hosts see it
  body_bytes,        // and on the link, with the shim
  offers,            // handshakes with this NIC's option, or with the peer's
  other_codec,       // handshakes with a NIC of other settings
  raw_other,         // not TCP over IPv4, or with another type of service
  raw_empty,         // marked packets without data, as acknowledgements are
  raw_unseen,        // the connection's beginning was not seen
  raw_no_peer,       // the peer has no NIC, or one with other settings
  raw_larger,        // would not shrink
  raw_repeated,      // sent again too often
  raw_bad_checksum,  // wrong already when it came from the host
  raw_arrived,       // marked data that came raw
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
