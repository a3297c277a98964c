// Ethernet frames with one whole IPv4 packet and a TCP header: the positions of their parts, and checksums.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire::nic {

using Byte = std::uint8_t;

inline constexpr std::size_t kEthernetNbytes = 14;
inline constexpr std::size_t kIpNbytes = 20;
inline constexpr std::size_t kTcpNbytes = 20;
inline constexpr std::size_t kTcpChecksumAt = 16;
inline constexpr std::size_t kMostTcpNbytes = 60;
inline constexpr std::size_t kMostIpPacketNbytes = 65535;
inline constexpr Byte kTcp = 6;
inline constexpr Byte kCompressed = 253;  // "use for experimentation and testing" (RFC 3692)
inline constexpr unsigned kDscp = 0xFC;   // excludes the two bits that routers set (RFC 3168)

enum TcpFlag : unsigned { kFin = 0x01, kSyn = 0x02, kRst = 0x04, kPsh = 0x08, kAck = 0x10, kUrg = 0x20, kCwr = 0x80 };

inline unsigned get16(const Byte* at) { return static_cast<unsigned>(at[0]) << 8 | at[1]; }
inline std::uint32_t get32(const Byte* at) { return static_cast<std::uint32_t>(get16(at)) << 16 | get16(at + 2); }
inline void put16(Byte* at, unsigned value) {
  at[0] = static_cast<Byte>(value >> 8);
  at[1] = static_cast<Byte>(value);
}
inline void put32(Byte* at, std::uint32_t value) {
  put16(at, value >> 16);
  put16(at + 2, value & 0xFFFF);
}

// A view of a frame's parts.
struct Packet {
  Byte* ip = nullptr;
  std::size_t ip_nbytes = 0;  // size of the header, like tcp_nbytes
  Byte* tcp = nullptr;
  std::size_t tcp_nbytes = 0;
  Byte* payload = nullptr;
  std::size_t payload_nbytes = 0;

  Byte protocol() const { return ip[9]; }
  unsigned tos() const { return ip[1]; }
  std::uint32_t source() const { return get32(ip + 12); }
  std::uint32_t destination() const { return get32(ip + 16); }
  unsigned source_port() const { return get16(tcp); }
  unsigned destination_port() const { return get16(tcp + 2); }
  std::uint32_t sequence() const { return get32(tcp + 4); }
  unsigned flags() const { return tcp[13]; }
  std::size_t headers_nbytes() const { return kEthernetNbytes + ip_nbytes + tcp_nbytes; }
};

// Locates the parts of a frame of `size` arbitrary bytes. Returns false unless it has a whole, unfragmented IPv4 packet
// of the protocol kTcp or kCompressed that begins with a TCP header.
bool parse(Byte* frame, std::size_t size, Packet& packet);

// Returns whether the frame claims to have a compressed packet of this type of service; `parse` may still reject it.
bool claims_compressed(const Byte* frame, std::size_t size, unsigned tos);

bool has_right_ip_checksum(const Packet& packet);
bool has_right_tcp_checksum(const Packet& packet);

// Write the IP header's length and checksum for a payload of this size, and TCP's checksum, or only its part over the
// pseudo-header, to which the kernel adds the rest.
void set_ip_length(Packet& packet, std::size_t payload_nbytes);
void set_tcp_checksum(const Packet& packet);
void start_tcp_checksum(const Packet& packet);

}  // namespace gradwire::nic
