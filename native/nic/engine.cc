#include "engine.h"

#include <algorithm>
#include <cstring>

#include "gradwire/target.h"

namespace gradwire::nic {

namespace {

constexpr Offload kNoOffload{};

bool is_cut_later(const Frame& frame) { return frame.offload.cut != kNotCut && frame.offload.cut_nbytes > 0; }
bool lacks_checksum(const Frame& frame) { return (frame.offload.flags & kNeedsChecksum) != 0; }
bool is_damaged(const Frame& frame, const Packet& packet) {
  return !lacks_checksum(frame) && !has_right_tcp_checksum(packet);
}

// The packet in a copy of its frame's headers.
Packet moved(const Packet& packet, const Byte* frame, Byte* to) {
  Packet other = packet;
  other.ip = to + (packet.ip - frame);
  other.tcp = to + (packet.tcp - frame);
  other.payload = to + (packet.payload - frame);
  return other;
}

}  // namespace

Engine::Engine(const Codec& codec, unsigned tos)
    : codec_(codec), offer_(offer_of(codec)), tos_(tos), to_link_(codec), to_host_(codec) {}

void Engine::to_link(Frame frame, const Emit& emit) {
  to_link_.counters.add(Count::frames_in);
  to_link_.counters.add(Count::bytes_in, frame.size);
  frame.offload.flags &= kNeedsChecksum;  // nothing else has a meaning for what is sent
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
    return pass(to_link_, frame, Count::raw_bad_checksum, emit);  // the receiver shall see that, too
  }
  const std::size_t most = is_cut_later(frame) ? frame.offload.cut_nbytes : packet.payload_nbytes;
  for (std::size_t at = 0; at < packet.payload_nbytes; at += most) {
    const std::size_t nbytes = std::min(most, packet.payload_nbytes - at);
    send_piece(frame, packet, at, nbytes, static_cast<unsigned>((phase + at) % 4), emit);
  }
}

void Engine::to_host(Frame frame, const Emit& emit) {
  to_host_.counters.add(Count::frames_in);
  to_host_.counters.add(Count::bytes_in, frame.size);
  frame.offload.flags &= kNeedsChecksum;  // nothing else has a meaning for what is sent
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

void Engine::send(Way& way, std::size_t size, const Emit& emit) { emit(way.out.data(), size, kNoOffload); }

void Engine::leave_with_offer(Frame frame, Packet& packet, const Emit& emit) {
  if (is_damaged(frame, packet) || !may_offer(packet)) {
    return pass(to_link_, frame, is_marked(packet) ? Count::raw_empty : Count::raw_other, emit);
  }
  to_link_.counters.add(Count::offers);
  send(to_link_, add_offer(frame.data, packet, offer_, to_link_.out.data()), emit);
}

// A SYN is answered for a marked connection only, and a SYN is marked itself.
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

void Engine::send_piece(const Frame& frame, const Packet& whole, std::size_t at, std::size_t nbytes, unsigned phase,
                        const Emit& emit) {
  Byte* const out = to_link_.out.data();
  const std::size_t headers = whole.headers_nbytes();
  std::memcpy(out, frame.data, headers);
  Packet packet = moved(whole, frame.data, out);
  const bool is_last = at + nbytes == whole.payload_nbytes;
  if (is_cut_later(frame)) {
    put16(packet.ip + 4, get16(packet.ip + 4) + static_cast<unsigned>(at / frame.offload.cut_nbytes));
    put32(packet.tcp + 4, packet.sequence() + static_cast<std::uint32_t>(at));
    if (!is_last) packet.tcp[13] &= static_cast<Byte>(~(kFin | kPsh));
    if (at > 0) packet.tcp[13] &= static_cast<Byte>(~kCwr);
  }
  Byte* const shim = packet.payload;
  const std::size_t limit = nbytes > kShimNbytes ? nbytes - kShimNbytes : 0;
  const std::size_t body =
      limit == 0 ? 0 : to_link_.coder.encode(phase, whole.payload + at, nbytes, shim + kShimNbytes, limit);
  if (body == 0) {
    to_link_.counters.add(Count::raw_larger);
    if (!is_cut_later(frame)) return emit(frame.data, frame.size, frame.offload);
    std::memcpy(packet.payload, whole.payload + at, nbytes);
    set_ip_length(packet, nbytes);
    set_tcp_checksum(packet);
    return send(to_link_, headers + nbytes, emit);
  }
  packet.ip[9] = kCompressed;
  set_ip_length(packet, kShimNbytes + body);
  put16(packet.tcp + 16, 0);
  put16(shim, static_cast<unsigned>(nbytes));
  shim[2] = static_cast<Byte>(kVersion << 4 | phase);
  shim[3] = codec_.wire_id;
  put32(shim + 4, seal(packet, shim, body));
  to_link_.counters.add(Count::compressed);
  to_link_.counters.add(Count::payload_bytes, nbytes);
  to_link_.counters.add(Count::body_bytes, kShimNbytes + body);
  send(to_link_, headers + kShimNbytes + body, emit);
}

// Emits the restored packet, or returns why there is none.
const char* Engine::restore(const Frame& frame, const Emit& emit) {
  Packet whole;
  if (!parse(frame.data, frame.size, whole) || whole.payload_nbytes < kShimNbytes) return "it is too short";
  if (!has_right_ip_checksum(whole)) return "its IP header is damaged";
  const Byte* const shim = whole.payload;
  const std::size_t nbytes = get16(shim);
  const std::size_t body = whole.payload_nbytes - kShimNbytes;
  if (shim[2] >> 4 != kVersion || (shim[2] & 0xC) != 0 || shim[3] != codec_.wire_id) return "it has another format";
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
  set_tcp_checksum(packet);
  to_host_.counters.add(Count::restored);
  to_host_.counters.add(Count::payload_bytes, nbytes);
  to_host_.counters.add(Count::body_bytes, whole.payload_nbytes);
  send(to_host_, whole.headers_nbytes() + nbytes, emit);
  return nullptr;
}

// Everything that must arrive unchanged: the NICs' codec, the addresses, the TCP header, the shim without this checksum,
// and the body. Routers change the rest of the IP header.
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
