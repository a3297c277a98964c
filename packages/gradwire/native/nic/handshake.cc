#include "handshake.h"

#include <cstring>

namespace gradwire::nic {

namespace {

enum OptionKind : Byte { kEnd = 0, kNothing = 1, kMd5 = 19, kAuthentication = 29, kExperiment = 254 };

// Calls use(kind, at, nbytes) for every option until it returns true, or the options end or are malformed.
template <typename Use>
void walk(const Packet& packet, const Use& use) {
  for (std::size_t at = kTcpNbytes; at < packet.tcp_nbytes;) {
    const Byte kind = packet.tcp[at];
    if (kind == kEnd) return;
    if (kind == kNothing) {
      ++at;
      continue;
    }
    const std::size_t nbytes = at + 1 < packet.tcp_nbytes ? packet.tcp[at + 1] : 0;
    if (nbytes < 2 || at + nbytes > packet.tcp_nbytes || use(kind, at, nbytes)) return;
    at += nbytes;
  }
}

std::size_t finish(Byte* frame, const Packet& before, std::size_t tcp_nbytes) {
  Packet packet = before;
  packet.ip = frame + kEthernetNbytes;
  packet.tcp = packet.ip + packet.ip_nbytes;
  packet.tcp_nbytes = tcp_nbytes;
  packet.payload = packet.tcp + tcp_nbytes;
  packet.tcp[12] = static_cast<Byte>((packet.tcp[12] & 0xF) | tcp_nbytes / 4 << 4);
  set_ip_length(packet, 0);
  set_tcp_checksum(packet);
  return packet.headers_nbytes();
}

}  // namespace

Offer offer_of(const Codec& codec, Byte version) {
  return {version, codec.wire_id, static_cast<Byte>(codec.params.a), static_cast<Byte>(codec.params.b)};
}

std::optional<Found> find_offer(const Packet& packet) {
  std::optional<Found> found;
  walk(packet, [&](Byte kind, std::size_t at, std::size_t nbytes) {
    const Byte* const option = packet.tcp + at;
    if (kind != kExperiment || nbytes != kOptionNbytes || option[2] != 'G' || option[3] != 'W') return false;
    found = Found{{option[4], option[5], option[6], option[7]}, at};
    return true;
  });
  return found;
}

bool can_offer(const Packet& packet) {
  bool is_signed = false;
  walk(packet, [&](Byte kind, std::size_t /*at*/, std::size_t /*nbytes*/) {
    is_signed = kind == kMd5 || kind == kAuthentication;
    return is_signed;
  });
  return !is_signed && packet.payload_nbytes == 0 && packet.tcp_nbytes + kOptionNbytes <= kMostTcpNbytes;
}

std::size_t add_offer(const Byte* frame, const Packet& packet, const Offer& offer, Byte* out) {
  const std::size_t fixed = kEthernetNbytes + packet.ip_nbytes + kTcpNbytes;
  const Byte option[kOptionNbytes] = {kExperiment, kOptionNbytes, 'G',     'W',
                                      offer.version, offer.wire_id, offer.a, offer.b};
  std::memcpy(out, frame, fixed);
  std::memcpy(out + fixed, option, kOptionNbytes);  // first, because other options may end with the end-of-options mark
  std::memcpy(out + fixed + kOptionNbytes, frame + fixed, packet.tcp_nbytes - kTcpNbytes);
  return finish(out, packet, packet.tcp_nbytes + kOptionNbytes);
}

std::size_t remove_offer(const Byte* frame, const Packet& packet, std::size_t at, Byte* out) {
  const std::size_t before = kEthernetNbytes + packet.ip_nbytes + at;
  std::memcpy(out, frame, before);
  std::memcpy(out + before, frame + before + kOptionNbytes, packet.tcp_nbytes - at - kOptionNbytes);
  return finish(out, packet, packet.tcp_nbytes - kOptionNbytes);
}

}  // namespace gradwire::nic
