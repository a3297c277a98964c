#include "engine.h"

#include <algorithm>
#include <cstring>

#include "gradwire/target.h"

namespace gradwire::nic {

namespace {

// The share of the last packet's content to try for the next one, so that a second try is rarely needed.
constexpr double kCaution = 0.97;
constexpr double kRetreat = 0.8;

bool is_cut_later(const Frame& frame) { return frame.offload.cut != kNotCut && frame.offload.cut_nbytes > 0; }
bool lacks_checksum(const Frame& frame) { return (frame.offload.flags & kNeedsChecksum) != 0; }
bool is_damaged(const Frame& frame, const Packet& packet) {
  return !lacks_checksum(frame) && !has_right_tcp_checksum(packet);
}

// Returns the offload of a frame with segments of this size, which the kernel completes.
Offload offload_of(const Packet& packet, std::size_t segment_nbytes) {
  Offload offload;
  offload.flags = kNeedsChecksum;
  offload.cut = kCutIpv4;
  offload.headers_nbytes = static_cast<std::uint16_t>(packet.headers_nbytes());
  offload.cut_nbytes = static_cast<std::uint16_t>(segment_nbytes);
  offload.checksum_start = static_cast<std::uint16_t>(kEthernetNbytes + packet.ip_nbytes);
  offload.checksum_at = kTcpChecksumAt;
  return offload;
}

// A packet with a copy of its frame's headers.
Packet moved(const Packet& packet, const Byte* frame, Byte* to) {
  Packet other = packet;
  other.ip = to + (packet.ip - frame);
  other.tcp = to + (packet.tcp - frame);
  other.payload = to + (packet.payload - frame);
  return other;
}

}  // namespace

void complete(Byte* frame, std::size_t size, const Offload& offload) {
  Packet packet;
  if ((offload.flags & kNeedsChecksum) != 0 && parse(frame, size, packet)) set_tcp_checksum(packet);
}

Engine::Engine(const Codec& codec, unsigned tos, bool merges)
    : codec_(codec),
      offer_(offer_of(codec, merges ? kMerged : kSingles)),
      tos_(tos),
      merges_(merges),
      to_link_(codec),
      to_host_(codec) {}

void Engine::to_link(Frame frame, const Emit& emit) {
  to_link_.counters.add(Count::frames_in);
  to_link_.counters.add(Count::bytes_in, frame.size);
  frame.offload.flags &= kNeedsChecksum;  // other flags have no meaning in sent frames
  Packet packet;
  if (!parse(frame.data, frame.size, packet) || packet.protocol() != kTcp) {
    return pass(to_link_, frame, Count::raw_other, emit);
  }
  if ((packet.flags() & kSyn) != 0) return leave_with_offer(frame, packet, emit);
  if (!is_marked(packet)) return pass(to_link_, frame, Count::raw_other, emit);
  if (packet.payload_nbytes == 0 || (packet.flags() & (kRst | kUrg)) != 0) {
    return pass(to_link_, frame, Count::raw_empty, emit);
  }
  unsigned phase = 0;
  const Count why = look_up(packet, phase);
  if (why != Count::compressed) return pass(to_link_, frame, why, emit);
  if (is_damaged(frame, packet)) {
    return pass(to_link_, frame, Count::raw_bad_checksum, emit);  // passed on, so that the receiver detects it
  }
  for (std::size_t at = 0; at < packet.payload_nbytes;) {
    at += send_piece(frame, packet, at, static_cast<unsigned>((phase + at) % 4), emit);
  }
}

void Engine::to_host(Frame frame, const Emit& emit) {
  to_host_.counters.add(Count::frames_in);
  to_host_.counters.add(Count::bytes_in, frame.size);
  frame.offload.flags &= kNeedsChecksum;  // other flags have no meaning in sent frames
  if (claims_compressed(frame.data, frame.size, tos_)) {
    if (restore(frame, emit) != nullptr) to_host_.counters.add(Count::malformed);
    return;
  }
  Packet packet;
  if (!parse(frame.data, frame.size, packet) || packet.protocol() != kTcp) {
    return pass(to_host_, frame, Count::raw_other, emit);
  }
  if ((packet.flags() & kSyn) != 0) return arrive_with_offer(frame, packet, emit);
  const Count why = !is_marked(packet)            ? Count::raw_other
                    : packet.payload_nbytes == 0 ? Count::raw_empty
                                                 : Count::raw_arrived;
  pass(to_host_, frame, why, emit);
}

void Engine::pass(Way& way, const Frame& frame, Count why, const Emit& emit) {
  way.counters.add(why);
  emit(frame.data, frame.size, frame.offload);
}

void Engine::send(Way& way, std::size_t size, const Emit& emit, const Offload& offload) {
  emit(way.out.data(), size, offload);
}

void Engine::leave_with_offer(Frame frame, Packet& packet, const Emit& emit) {
  if (is_damaged(frame, packet) || !may_offer(packet)) {
    return pass(to_link_, frame, is_marked(packet) ? Count::raw_empty : Count::raw_other, emit);
  }
  to_link_.counters.add(Count::offers);
  send(to_link_, add_offer(frame.data, packet, offer_, to_link_.out.data()), emit);
}

// A SYN must be marked. Its answer need not be, because only marked SYNs carry an offer that a NIC answers.
bool Engine::may_offer(const Packet& packet) {
  const FlowKey key = key_of_sent(packet);
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_answer = (packet.flags() & kAck) != 0;
  if (!can_offer(packet) || (!is_answer && !is_marked(packet))) {
    flows_.forget(key);
    return false;
  }
  if (!is_answer) {
    flows_.begin(key).first = packet.sequence() + 1;
    return true;
  }
  Flow* const flow = flows_.find(key);
  if (flow == nullptr || flow->peer == Peer::unknown) return false;
  flow->first = packet.sequence() + 1;
  flow->is_open = flow->peer == Peer::agrees;
  return true;
}

void Engine::arrive_with_offer(Frame frame, Packet& packet, const Emit& emit) {
  const auto found = find_offer(packet);
  if (!found || lacks_checksum(frame) || packet.payload_nbytes != 0 || !has_right_tcp_checksum(packet)) {
    if (!found) note_offer(packet, nullptr);
    return pass(to_host_, frame, is_marked(packet) ? Count::raw_empty : Count::raw_other, emit);
  }
  to_host_.counters.add(Count::offers);
  if (!(found->offer == offer_)) to_host_.counters.add(Count::other_codec);
  note_offer(packet, &found->offer);
  send(to_host_, remove_offer(frame.data, packet, found->at, to_host_.out.data()), emit);
}

void Engine::note_offer(const Packet& packet, const Offer* offer) {
  const FlowKey key = key_of_received(packet);
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_answer = (packet.flags() & kAck) != 0;
  if (offer == nullptr && !is_answer) return flows_.forget(key);
  Flow* const flow = is_answer ? flows_.find(key) : &flows_.begin(key);
  if (flow == nullptr) return;
  flow->peer = offer == nullptr ? Peer::unknown : *offer == offer_ ? Peer::agrees : Peer::differs;
  flow->is_open = is_answer && flow->peer == Peer::agrees;
}

Count Engine::look_up(const Packet& packet, unsigned& phase) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Flow* const flow = flows_.find(key_of_sent(packet));
  if (flow == nullptr) return Count::raw_unseen;
  if (!flow->is_open) return Count::raw_no_peer;
  if (!flow->patience.allows(packet.sequence(), packet.payload_nbytes)) return Count::raw_repeated;
  phase = (packet.sequence() - flow->first) % 4;
  return Count::compressed;
}

// Sends the payload from a given byte on, and returns the number of bytes sent.
std::size_t Engine::send_piece(const Frame& frame, const Packet& whole, std::size_t at, unsigned phase,
                               const Emit& emit) {
  Byte* const out = to_link_.out.data();
  const std::size_t headers = whole.headers_nbytes();
  std::memcpy(out, frame.data, headers);
  Packet packet = moved(whole, frame.data, out);
  Byte* const shim = packet.payload;
  std::size_t nbytes = 0;
  const std::size_t body = fill(frame, whole, at, phase, shim + kShimNbytes, nbytes);
  if (is_cut_later(frame)) {
    put16(packet.ip + 4, get16(packet.ip + 4) + static_cast<unsigned>(at / frame.offload.cut_nbytes));
    put32(packet.tcp + 4, packet.sequence() + static_cast<std::uint32_t>(at));
    if (at + nbytes < whole.payload_nbytes) packet.tcp[13] &= static_cast<Byte>(~(kFin | kPsh));
    if (at > 0) packet.tcp[13] &= static_cast<Byte>(~kCwr);
  }
  if (body == 0) {
    to_link_.counters.add(Count::raw_larger);
    if (!is_cut_later(frame)) {
      emit(frame.data, frame.size, frame.offload);
      return nbytes;
    }
    std::memcpy(packet.payload, whole.payload + at, nbytes);
    set_ip_length(packet, nbytes);
    set_tcp_checksum(packet);
    send(to_link_, headers + nbytes, emit);
    return nbytes;
  }
  packet.ip[9] = kCompressed;
  set_ip_length(packet, kShimNbytes + body);
  const bool is_merged = is_cut_later(frame) && nbytes > frame.offload.cut_nbytes;
  put16(packet.tcp + kTcpChecksumAt, is_merged ? frame.offload.cut_nbytes : 0);
  put16(shim, static_cast<unsigned>(nbytes));
  shim[2] = static_cast<Byte>(offer_.version << 4 | phase);
  shim[3] = codec_.wire_id;
  put32(shim + 4, seal(packet, shim, body));
  to_link_.counters.add(Count::compressed);
  to_link_.counters.add(Count::payload_bytes, nbytes);
  to_link_.counters.add(Count::body_bytes, kShimNbytes + body);
  send(to_link_, headers + kShimNbytes + body, emit);
  return nbytes;
}

// Encodes as many bytes as fit into one segment with the shim: several segments, or one. Writes the number of bytes,
// and returns the body's size, or 0 if one segment wouldn't shrink.
std::size_t Engine::fill(const Frame& frame, const Packet& whole, std::size_t at, unsigned phase, Byte* body,
                         std::size_t& nbytes) {
  const Byte* const payload = whole.payload + at;
  const std::size_t left = whole.payload_nbytes - at;
  const std::size_t segment = is_cut_later(frame) ? std::min<std::size_t>(frame.offload.cut_nbytes, left) : left;
  const std::size_t room = segment > kShimNbytes ? segment - kShimNbytes : 0;
  if (merges_ && left > segment && segment >= kLeastSegmentNbytes) {
    for (;; ratio_ *= kRetreat) {
      nbytes = std::min(left, static_cast<std::size_t>(ratio_ * kCaution * static_cast<double>(room)));
      if (nbytes < left) nbytes -= std::min<std::size_t>(nbytes, (phase + nbytes) % 4);  // cut between two floats
      if (nbytes <= segment) break;
      const std::size_t size = to_link_.coder.encode(phase, payload, nbytes, body, room + 1);
      if (size == 0) continue;
      if (nbytes < left) ratio_ = static_cast<double>(nbytes) / static_cast<double>(size);
      return size;
    }
  }
  nbytes = segment;
  const std::size_t size = room == 0 ? 0 : to_link_.coder.encode(phase, payload, nbytes, body, room);
  if (left > segment) ratio_ = size == 0 ? 1 : static_cast<double>(nbytes) / static_cast<double>(size);
  return size;
}

// Emits the restored packet and returns null, or returns the fault.
const char* Engine::restore(const Frame& frame, const Emit& emit) {
  Packet whole;
  if (!parse(frame.data, frame.size, whole) || whole.payload_nbytes < kShimNbytes) return "it is too short";
  if (!has_right_ip_checksum(whole)) return "its IP header is damaged";
  const Byte* const shim = whole.payload;
  const std::size_t nbytes = get16(shim);
  const std::size_t body = whole.payload_nbytes - kShimNbytes;
  const std::size_t segment = get16(whole.tcp + kTcpChecksumAt);
  if (shim[2] >> 4 != offer_.version || (shim[2] & 0xC) != 0 || shim[3] != codec_.wire_id) return "it has a different format";
  if (segment != 0 && (!merges_ || segment < kLeastSegmentNbytes || nbytes <= segment)) return "its segment size is invalid";
  if (get32(shim + 4) != seal(whole, shim, body)) return "its checksum is wrong";
  if (whole.ip_nbytes + whole.tcp_nbytes + nbytes > kMostIpPacketNbytes) return "it would be too long";
  Byte* const out = to_host_.out.data();
  std::memcpy(out, frame.data, whole.headers_nbytes());
  Packet packet = moved(whole, frame.data, out);
  if (const char* reason = to_host_.coder.decode(shim[2] & 3U, shim + kShimNbytes, body, packet.payload, nbytes)) {
    return reason;
  }
  packet.ip[9] = kTcp;
  set_ip_length(packet, nbytes);
  Offload offload;
  if (segment == 0) {
    set_tcp_checksum(packet);
  } else {
    offload = offload_of(packet, segment);
    start_tcp_checksum(packet);
  }
  to_host_.counters.add(Count::restored);
  to_host_.counters.add(Count::payload_bytes, nbytes);
  to_host_.counters.add(Count::body_bytes, whole.payload_nbytes);
  send(to_host_, whole.headers_nbytes() + nbytes, emit, offload);
  return nullptr;
}

// Returns the checksum of everything that must arrive unchanged: the NICs' codec, the addresses, the TCP header, the
// shim without this checksum, and the body. Routers change the rest of the IP header.
std::uint32_t Engine::seal(const Packet& packet, const Byte* shim, std::size_t body_nbytes) const {
  const auto crc32c = current_target().crc32c;
  const Byte codec[4] = {offer_.version, offer_.wire_id, offer_.a, offer_.b};
  std::uint32_t crc = crc32c(codec, sizeof codec, 0);
  crc = crc32c(packet.ip + 12, 8, crc);
  crc = crc32c(packet.tcp, packet.tcp_nbytes, crc);
  crc = crc32c(shim, 4, crc);
  return crc32c(shim + kShimNbytes, body_nbytes, crc);
}

}  // namespace gradwire::nic
