// The table of connections on which two NICs have agreed to compress. A forgotten connection is sent uncompressed, so
// the table may forget any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "handshake.h"

namespace gradwire::nic {

struct FlowKey {
  std::uint32_t local;
  std::uint32_t remote;
  std::uint32_t ports;  // the local port in the upper half

  bool operator==(const FlowKey&) const = default;
};

FlowKey key_of_sent(const Packet& packet);
FlowKey key_of_received(const Packet& packet);

// The choice to send uncompressed if compressed packets don't arrive, for example after the peer's NIC was removed.
// Such sending begins with a segment's third retransmission, and lasts for increasing times, because packet loss may
// look the same.
class Patience {
 public:
  // Returns whether the segment may be compressed.
  bool allows(std::uint32_t sequence, std::size_t nbytes);

 private:
  bool has_begun_ = false;
  std::uint32_t end_ = 0;     // the end of the data sent so far
  std::uint32_t repeated_ = 0;  // the segment retransmitted last, and how often in a row
  int repeats_ = 0;
  bool is_raw_ = false;
  std::uint32_t raw_end_ = 0;
  std::uint32_t raw_nbytes_ = 1U << 22;
};

enum class Peer { unknown, agrees, differs };

struct Flow {
  std::uint32_t first = 0;  // the sequence number of the host's first byte
  Peer peer = Peer::unknown;
  bool is_open = false;  // both sides have sent their offers
  Patience patience;
  std::uint64_t used = 0;
};

class Flows {
 public:
  // Returns null if the connection is unknown.
  Flow* find(const FlowKey& key);

  // Adds a connection, in place of an older one with the same key, and drops the one idle for longest if there are too
  // many.
  Flow& begin(const FlowKey& key);

  void forget(const FlowKey& key) { flows_.erase(key); }

 private:
  struct Hash {
    std::size_t operator()(const FlowKey& key) const;
  };

  std::unordered_map<FlowKey, Flow, Hash> flows_;
  std::uint64_t clock_ = 0;
};

}  // namespace gradwire::nic
