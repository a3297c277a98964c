#include "check_nic.h"

#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "inputs.h"
#include "nic/engine.h"

namespace gradwire::fuzz {

namespace {

using Bytes = Buffer<std::uint8_t>;
using nic::Engine;

constexpr int kMutations = 8;
constexpr unsigned kTos = 0x28;
constexpr std::size_t kHeaders = nic::kEthernetNbytes + nic::kIpNbytes + nic::kTcpNbytes;
constexpr std::uint32_t kFirst = 0xFFFFFFF0U;

// Returns a frame with correct checksums, from the initiator or, if `is_answer`, from the other host.
Bytes make_frame(unsigned flags, std::uint32_t sequence, const Bytes& payload, bool is_answer, Random& random) {
  Bytes frame(kHeaders + payload.size(), random.below(8));
  frame.fill(0);
  frame[12] = 8;
  std::uint8_t* const ip = frame.data() + nic::kEthernetNbytes;
  std::uint8_t* const tcp = ip + nic::kIpNbytes;
  ip[0] = 0x45;
  ip[1] = kTos;
  ip[9] = nic::kTcp;
  ip[15] = is_answer ? 2 : 1;
  ip[19] = is_answer ? 1 : 2;
  tcp[1] = is_answer ? 4 : 3;
  tcp[3] = is_answer ? 3 : 4;
  nic::put32(tcp + 4, sequence);
  tcp[12] = 5 << 4;
  tcp[13] = static_cast<std::uint8_t>(flags);
  if (payload.size() > 0) std::memcpy(tcp + nic::kTcpNbytes, payload.data(), payload.size());
  nic::Packet packet{ip, nic::kIpNbytes, tcp, nic::kTcpNbytes, tcp + nic::kTcpNbytes, payload.size()};
  nic::set_ip_length(packet, payload.size());
  nic::set_tcp_checksum(packet);
  return frame;
}

std::vector<Bytes> handle(Engine& engine, bool to_link, const Bytes& frame, std::size_t cut) {
  Bytes copy = frame;
  nic::Offload offload;
  offload.cut = cut > 0 ? 1 : 0;
  offload.cut_nbytes = static_cast<std::uint16_t>(cut);
  offload.flags = cut > 0 ? nic::kNeedsChecksum : 0;
  std::vector<Bytes> frames;
  const nic::Emit emit = [&](const nic::Byte* data, std::size_t size, const nic::Offload& left) {
    frames.emplace_back(size, 0);
    frames.back().copy_from(data, size);
    nic::complete(frames.back().data(), size, left);
  };
  const nic::Frame taken{copy.data(), copy.size(), offload};
  to_link ? engine.to_link(taken, emit) : engine.to_host(taken, emit);
  return frames;
}

Bytes random_payload(Random& random) {
  const Buffer<float> chunk = random_chunk(random, random.below(400));
  const std::size_t cut = random.below(4);
  Bytes payload(4 * chunk.size() > cut ? 4 * chunk.size() - cut : 0, random.below(8));
  payload.copy_from(reinterpret_cast<const std::uint8_t*>(chunk.data()), payload.size());
  return payload;
}

void check_whole(const std::vector<Bytes>& frames, const Bytes& sent) {
  for (const Bytes& frame : frames) {
    if (frame.same_bits(sent)) continue;
    Bytes copy = frame;
    nic::Packet packet;
    if (!nic::parse(copy.data(), copy.size(), packet) || packet.protocol() != nic::kTcp ||
        !nic::has_right_ip_checksum(packet) || !nic::has_right_tcp_checksum(packet)) {
      throw Failure("a NIC passed an incomplete frame to its host");
    }
  }
}

const Case& offloadable(const std::vector<std::vector<Case>>& cases, Random& random) {
  for (;;) {
    const Case& chosen = pick(cases, random.below(1 << 16), random.below(1 << 16));
    const std::string name = chosen.format->name;
    if (name == "inceptionn" || (name == "pack" && chosen.params.a > 8)) return chosen;
  }
}

}  // namespace

Verdicts check_nic(const std::vector<std::vector<Case>>& cases, Random& random) {
  const Case& chosen = offloadable(cases, random);
  const nic::Codec codec{chosen.format, chosen.params, 3};
  const bool merges = random.one_in(2);
  Engine near(codec, kTos, merges);
  Engine far(codec, kTos, merges);
  const Bytes nothing(0, 0);
  for (const bool is_answer : {false, true}) {
    const unsigned flags = nic::kSyn | (is_answer ? nic::kAck : 0U);
    const Bytes call = make_frame(flags, kFirst, nothing, is_answer, random);
    const auto sent = handle(is_answer ? far : near, true, call, 0);
    const auto came = handle(is_answer ? near : far, false, sent.at(0), 0);
    if (came.size() != 1 || !came[0].same_bits(call)) throw Failure("a NIC changed the hosts' handshake");
  }
  const Bytes payload = random_payload(random);
  const Bytes segment = make_frame(nic::kAck, kFirst + 1 + static_cast<std::uint32_t>(random.below(4)), payload, false,
                                   random);
  const std::size_t cut = random.one_in(2) ? 0 : 1 + random.below(1000);
  const std::vector<Bytes> sent = handle(near, true, segment, cut);
  Verdicts verdicts;
  for (const Bytes& frame : sent) {
    const auto came = handle(far, false, frame, 0);
    if (came.size() != 1) throw Failure("a NIC dropped another NIC's packet");
    check_whole(came, frame);
    for (int i = 0; i < kMutations; ++i) {
      const Bytes wrong = mutated(random, frame);
      const auto taken = handle(far, false, wrong, 0);
      check_whole(taken, wrong);
      (taken.empty() ? verdicts.refused : verdicts.accepted) += 1;
      handle(near, true, wrong, random.one_in(2) ? 0 : 1 + random.below(1000));
    }
  }
  return verdicts;
}

}  // namespace gradwire::fuzz
