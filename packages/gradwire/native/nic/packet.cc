#include "packet.h"

#include <bit>
#include <cstring>

static_assert(std::endian::native == std::endian::little, "checksums are added in the order of the machine");

namespace gradwire::nic {

namespace {

constexpr unsigned kIpv4 = 0x0800;
constexpr unsigned kFragment = 0x3FFF;  // "more fragments" and the offset

// Returns the sum of the bytes as 16-bit words. 32-bit words have the same sum, because 2^16 is 1 modulo 2^16 - 1.
std::uint64_t add(std::uint64_t sum, const Byte* data, std::size_t nbytes) {
  std::size_t at = 0;
  for (; at + 4 <= nbytes; at += 4) {
    std::uint32_t word;
    std::memcpy(&word, data + at, 4);
    sum += word;
  }
  if (nbytes - at >= 2) {
    std::uint16_t word;
    std::memcpy(&word, data + at, 2);
    sum += word;
    at += 2;
  }
  return at < nbytes ? sum + data[at] : sum;
}

std::uint16_t folded(std::uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

void put_checksum(Byte* at, std::uint64_t sum) {
  const auto checksum = static_cast<std::uint16_t>(~folded(sum));
  std::memcpy(at, &checksum, 2);
}

std::uint64_t pseudo_sum(const Packet& packet) {
  Byte pseudo[12];
  std::memcpy(pseudo, packet.ip + 12, 8);
  put16(pseudo + 8, kTcp);
  put16(pseudo + 10, static_cast<unsigned>(packet.tcp_nbytes + packet.payload_nbytes));
  return add(0, pseudo, sizeof pseudo);
}

std::uint64_t tcp_sum(const Packet& packet) {
  return add(pseudo_sum(packet), packet.tcp, packet.tcp_nbytes + packet.payload_nbytes);
}

}  // namespace

bool parse(Byte* frame, std::size_t size, Packet& packet) {
  if (size < kEthernetNbytes + kIpNbytes + kTcpNbytes || get16(frame + 12) != kIpv4) return false;
  Byte* const ip = frame + kEthernetNbytes;
  const std::size_t ip_nbytes = std::size_t{4} * (ip[0] & 0xFU);
  const std::size_t total = get16(ip + 2);
  if (ip[0] >> 4 != 4 || ip_nbytes < kIpNbytes || (get16(ip + 6) & kFragment) != 0) return false;
  if (ip[9] != kTcp && ip[9] != kCompressed) return false;
  if (total > size - kEthernetNbytes || total < ip_nbytes + kTcpNbytes) return false;
  Byte* const tcp = ip + ip_nbytes;
  const std::size_t tcp_nbytes = std::size_t{4} * (tcp[12] >> 4);
  if (tcp_nbytes < kTcpNbytes || total < ip_nbytes + tcp_nbytes) return false;
  packet = {ip, ip_nbytes, tcp, tcp_nbytes, tcp + tcp_nbytes, total - ip_nbytes - tcp_nbytes};
  return true;
}

bool claims_compressed(const Byte* frame, std::size_t size, unsigned tos) {
  const Byte* const ip = frame + kEthernetNbytes;
  return size >= kEthernetNbytes + kIpNbytes && get16(frame + 12) == kIpv4 && ip[0] >> 4 == 4 && ip[9] == kCompressed &&
         (ip[1] & kDscp) == (tos & kDscp);
}

bool has_right_ip_checksum(const Packet& packet) { return folded(add(0, packet.ip, packet.ip_nbytes)) == 0xFFFF; }

bool has_right_tcp_checksum(const Packet& packet) { return folded(tcp_sum(packet)) == 0xFFFF; }

void set_ip_length(Packet& packet, std::size_t payload_nbytes) {
  packet.payload_nbytes = payload_nbytes;
  put16(packet.ip + 2, static_cast<unsigned>(packet.ip_nbytes + packet.tcp_nbytes + payload_nbytes));
  put16(packet.ip + 10, 0);
  put_checksum(packet.ip + 10, add(0, packet.ip, packet.ip_nbytes));
}

void set_tcp_checksum(const Packet& packet) {
  put16(packet.tcp + kTcpChecksumAt, 0);
  put_checksum(packet.tcp + kTcpChecksumAt, tcp_sum(packet));
}

void start_tcp_checksum(const Packet& packet) {
  const std::uint16_t sum = folded(pseudo_sum(packet));
  std::memcpy(packet.tcp + kTcpChecksumAt, &sum, 2);
}

}  // namespace gradwire::nic
