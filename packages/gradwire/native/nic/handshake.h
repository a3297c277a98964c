// The TCP option by which two NICs find each other: a NIC adds it to a SYN that leaves its host, and removes it from one
// that arrives. It is an experimental option (RFC 6994), which hosts without a NIC ignore.
//
//   254 | 8 | 'G' 'W' | version | codec's wire id | its first parameter | its second one
#pragma once

#include <optional>

#include "packet.h"
#include "segment.h"

namespace gradwire::nic {

inline constexpr std::size_t kOptionNbytes = 8;
// The kinds of packets: one for each segment, or also one for several (engine.h).
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

// The offer in a packet's options, and where it stands.
struct Found {
  Offer offer;
  std::size_t at;  // from the start of the TCP header
};
std::optional<Found> find_offer(const Packet& packet);

// Returns whether the option fits, and no signature covers the options.
bool can_offer(const Packet& packet);

// Write the packet's frame with the option to `out`, or without it. The payload is empty. Return the frame's size.
std::size_t add_offer(const Byte* frame, const Packet& packet, const Offer& offer, Byte* out);
std::size_t remove_offer(const Byte* frame, const Packet& packet, std::size_t at, Byte* out);

}  // namespace gradwire::nic
