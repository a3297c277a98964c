#include "segment.h"

#include <algorithm>
#include <cstring>

#include "gradwire/target.h"

namespace gradwire::nic {

namespace {

constexpr std::size_t kMostFloats = kMostIpPacketNbytes / 4;

struct Cut {
  std::size_t head;
  std::size_t floats;
  std::size_t tail;
};

Cut cut_of(unsigned phase, std::size_t nbytes) {
  const std::size_t head = std::min(nbytes, std::size_t{(4 - phase % 4) % 4});
  return {head, (nbytes - head) / 4, (nbytes - head) % 4};
}

}  // namespace

SegmentCoder::SegmentCoder(const Codec& codec)
    : codec_(codec), floats_(kMostFloats), encoded_(codec.format->max_nbytes(kMostFloats, codec.params)) {}

std::size_t SegmentCoder::encode(unsigned phase, const Byte* payload, std::size_t nbytes, Byte* body,
                                 std::size_t limit) {
  const Cut cut = cut_of(phase, nbytes);
  if (cut.floats == 0 || cut.floats > kMostFloats) return 0;
  std::memcpy(floats_.data(), payload + cut.head, 4 * cut.floats);
  const std::size_t size =
      codec_.format->encode(current_target(), floats_.data(), cut.floats, encoded_.data(), codec_.params, 1);
  if (cut.head + cut.tail + size >= limit) return 0;
  std::memcpy(body, payload, cut.head);
  std::memcpy(body + cut.head, payload + nbytes - cut.tail, cut.tail);
  std::memcpy(body + cut.head + cut.tail, encoded_.data(), size);
  return cut.head + cut.tail + size;
}

const char* SegmentCoder::decode(unsigned phase, const Byte* body, std::size_t body_nbytes, Byte* payload,
                                 std::size_t nbytes) {
  const Cut cut = cut_of(phase, nbytes);
  if (cut.floats == 0 || cut.floats > kMostFloats) return "it holds no whole float, or too many";
  const std::size_t raw = cut.head + cut.tail;
  if (body_nbytes < raw) return "its raw bytes are truncated";
  if (const char* reason = codec_.format->decode(current_target(), body + raw, body_nbytes - raw, floats_.data(),
                                                 cut.floats, codec_.params, false, 1)) {
    return reason;
  }
  std::memcpy(payload, body, cut.head);
  std::memcpy(payload + cut.head, floats_.data(), 4 * cut.floats);
  std::memcpy(payload + nbytes - cut.tail, body + cut.head, cut.tail);
  return nullptr;
}

}  // namespace gradwire::nic
