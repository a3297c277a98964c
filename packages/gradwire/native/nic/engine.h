// A NIC's processing of frames, without sockets. Each direction's frames may be handled by one thread.
//
// A compressed packet is the TCP segment with the IP protocol kCompressed, and a shim between the TCP header and the
// body (segment.h). The shim has the payload's length (2 bytes), version << 4 | phase of the first byte within a float,
// the codec's wire id, and the CRC32C of everything that must arrive unchanged. It is sufficient to restore the packet,
// even for a NIC that has forgotten the connection. TCP's checksum is 0 in a compressed packet.
//
// A NIC that merges segments takes a frame that the kernel hasn't yet cut into segments, and compresses as much of it
// as fits into a packet of one segment's size. The packet has the segment size in place of TCP's checksum, and the
// receiving NIC passes such an uncut frame to its host.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "counters.h"
#include "flows.h"
#include "packet.h"
#include "segment.h"

namespace gradwire::nic {

inline constexpr std::size_t kShimNbytes = 8;

// The work left to the kernel, a checksum or a cut into segments: virtio_net_hdr of linux/virtio_net.h, which doesn't
// compile as C++.
struct Offload {
  Byte flags = 0;
  Byte cut = 0;
  std::uint16_t headers_nbytes = 0;
  std::uint16_t cut_nbytes = 0;
  std::uint16_t checksum_start = 0;
  std::uint16_t checksum_at = 0;
};
static_assert(sizeof(Offload) == 10);
inline constexpr Byte kNeedsChecksum = 1;
inline constexpr Byte kNotCut = 0;
inline constexpr Byte kCutIpv4 = 1;
inline constexpr std::size_t kLeastSegmentNbytes = 48;  // Linux sends no smaller ones

struct Frame {
  Byte* data;
  std::size_t size;
  Offload offload;
};

// Computes a checksum that was left to the kernel.
void complete(Byte* frame, std::size_t size, const Offload& offload);

using Emit = std::function<void(const Byte* data, std::size_t size, const Offload& offload)>;

class Engine {
 public:
  Engine(const Codec& codec, unsigned tos, bool merges);

  // Call emit for each frame that replaces this one, whose bytes may be changed.
  void to_link(Frame frame, const Emit& emit);
  void to_host(Frame frame, const Emit& emit);

  Counters& counters(bool to_link) { return (to_link ? to_link_ : to_host_).counters; }

 private:
  struct Way {
    explicit Way(const Codec& codec) : coder(codec), out(kEthernetNbytes + kMostIpPacketNbytes + 1) {}

    Counters counters;
    SegmentCoder coder;
    std::vector<Byte> out;
  };

  bool is_marked(const Packet& packet) const { return ((packet.tos() ^ tos_) & kDscp) == 0; }
  void pass(Way& way, const Frame& frame, Count why, const Emit& emit);
  void send(Way& way, std::size_t size, const Emit& emit, const Offload& offload = {});
  void leave_with_offer(Frame frame, Packet& packet, const Emit& emit);
  void arrive_with_offer(Frame frame, Packet& packet, const Emit& emit);
  bool may_offer(const Packet& packet);
  void note_offer(const Packet& packet, const Offer* offer);
  Count look_up(const Packet& packet, unsigned& phase);
  std::size_t send_piece(const Frame& frame, const Packet& whole, std::size_t at, unsigned phase, const Emit& emit);
  std::size_t fill(const Frame& frame, const Packet& whole, std::size_t at, unsigned phase, Byte* body,
                   std::size_t& nbytes);
  const char* restore(const Frame& frame, const Emit& emit);
  std::uint32_t seal(const Packet& packet, const Byte* shim, std::size_t body_nbytes) const;

  const Codec codec_;
  const Offer offer_;
  const unsigned tos_;
  std::mutex mutex_;  // guards flows_
  Flows flows_;
  const bool merges_;
  double ratio_ = 1;  // payload bytes per body byte of the last merged packet
  Way to_link_;
  Way to_host_;
};

}  // namespace gradwire::nic
