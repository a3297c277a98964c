// The TCP option by which two NICs find each other. A NIC adds it to its host's outgoing SYNs, and removes it from
// incoming ones. It is an experimental option (RFC 6994), which hosts without a NIC ignore.
//
//   254 | 8 | 'G' 'W' | version | codec's wire id | its first parameter | its second one
#pragma once

#include <optional>

#include "packet.h"
#include "segment.h"

namespace gradwire::nic {

inline constexpr std::size_t kOptionNbytes = 8;
// The kinds of packets: one per segment, or also one for several segments (engine.h).
inline constexpr Byte kSingles = 1;
inline constexpr Byte kMerged = 2;

// The capabilities that a NIC offers.
struct Offer {
  Byte version;
  Byte wire_id;
  Byte a;
  Byte b;

  bool operator==(const Offer&) const = default;
};

Offer offer_of(const Codec& codec, Byte version);

// The offer in a packet's options, and its position.
struct Found {
  Offer offer;
  std::size_t at;  // offset from the start of the TCP header
};
std::optional<Found> find_offer(const Packet& packet);

// Returns whether there is room for the option, and no signature covers the options.
bool can_offer(const Packet& packet);

// Write the packet's frame to `out`, with or without the option, and return its size. The payload is empty.
std::size_t add_offer(const Byte* frame, const Packet& packet, const Offer& offer, Byte* out);
std::size_t remove_offer(const Byte* frame, const Packet& packet, std::size_t at, Byte* out);

}  // namespace gradwire::nic
