#include "frame.h"

#include <cstring>

#include "kernels/bits.h"

namespace gradwire::engine {

namespace {

constexpr Byte kMagic[4] = {'G', 'R', 'D', 'W'};
constexpr Byte kVersion = 1;
constexpr std::uint16_t kAverage = 1;

// The positions of the header's fields, which are little-endian.
constexpr std::size_t kVersionAt = 4;
constexpr std::size_t kCodecAt = 5;
constexpr std::size_t kFlagsAt = 6;
constexpr std::size_t kCountAt = 8;
constexpr std::size_t kNbytesAt = 12;
constexpr std::size_t kSequenceAt = 16;
constexpr std::size_t kFingerprintAt = 20;
constexpr std::size_t kPayloadChecksumAt = 24;
constexpr std::size_t kChecksumAt = 28;

void sign(const Target& target, Byte* frame) { store_word(frame + kChecksumAt, target.crc32c(frame, kChecksumAt, 0)); }

// A frame without a step is valid in every step.
bool agree(std::uint16_t got, std::uint16_t expected) {
  const auto differ = static_cast<std::uint16_t>(got ^ expected);
  return (differ & kAverage) == 0 && (differ >> 1 == 0 || got >> 1 == 0 || expected >> 1 == 0);
}

}  // namespace

void write_header(const Target& target, Byte* frame, const Byte* payload, std::size_t payload_nbytes,
                  const Header& header) {
  std::memcpy(frame, kMagic, sizeof(kMagic));
  frame[kVersionAt] = kVersion;
  frame[kCodecAt] = header.codec_id;
  store_word(frame + kFlagsAt, header.flags);
  store_word(frame + kCountAt, header.count);
  store_word(frame + kNbytesAt, static_cast<std::uint32_t>(payload_nbytes));
  store_word(frame + kSequenceAt, header.sequence);
  store_word(frame + kFingerprintAt, header.fingerprint);
  store_word(frame + kPayloadChecksumAt, target.crc32c(payload, payload_nbytes, 0));
  sign(target, frame);
}

std::size_t seal(const Target& target, Byte* frame, std::size_t payload_nbytes, const Header& header) {
  write_header(target, frame, frame + kHeaderNbytes, payload_nbytes, header);
  return kHeaderNbytes + payload_nbytes;
}

void renumber(const Target& target, Byte* frame, std::uint32_t sequence) {
  store_word(frame + kSequenceAt, sequence);
  sign(target, frame);
}

bool open(const Target& target, const Byte* frame, std::size_t nbytes, const Header& expected, std::size_t most_nbytes,
          std::size_t& payload_nbytes) {
  if (nbytes < kHeaderNbytes || std::memcmp(frame, kMagic, sizeof(kMagic)) != 0) return false;
  if (load_word<std::uint32_t>(frame + kChecksumAt) != target.crc32c(frame, kChecksumAt, 0)) return false;
  payload_nbytes = load_word<std::uint32_t>(frame + kNbytesAt);
  return frame[kVersionAt] == kVersion && frame[kCodecAt] == expected.codec_id &&
         agree(load_word<std::uint16_t>(frame + kFlagsAt), expected.flags) &&
         load_word<std::uint32_t>(frame + kFingerprintAt) == expected.fingerprint &&
         load_word<std::uint32_t>(frame + kSequenceAt) == expected.sequence &&
         load_word<std::uint32_t>(frame + kCountAt) == expected.count && payload_nbytes <= most_nbytes &&
         payload_nbytes <= nbytes - kHeaderNbytes &&
         load_word<std::uint32_t>(frame + kPayloadChecksumAt) == target.crc32c(frame + kHeaderNbytes, payload_nbytes, 0);
}

}  // namespace gradwire::engine
