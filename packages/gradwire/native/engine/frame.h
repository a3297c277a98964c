// The header of a frame, as gradwire/wire.py defines it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/target.h"

namespace gradwire::engine {

using Byte = std::uint8_t;

constexpr std::size_t kHeaderNbytes = 32;

struct Header {
  std::uint8_t codec_id;
  std::uint16_t flags;
  std::uint32_t count;
  std::uint32_t fingerprint;
  std::uint32_t sequence;
};

// Writes the header of a payload to `frame`. The payload may be anywhere in memory.
void write_header(const Target& target, Byte* frame, const Byte* payload, std::size_t payload_nbytes,
                  const Header& header);

// Writes the header in front of a payload, which is already in place, and returns the frame's size.
std::size_t seal(const Target& target, Byte* frame, std::size_t payload_nbytes, const Header& header);

// Changes the sequence number of a valid frame.
void renumber(const Target& target, Byte* frame, std::uint32_t sequence);

// Returns whether a frame has the expected header and an intact payload of at most `most_nbytes`, and sets the payload's
// size. The function accepts the same frames as wire.open_frame, which gives the reason for refusing a frame.
bool open(const Target& target, const Byte* frame, std::size_t nbytes, const Header& expected, std::size_t most_nbytes,
          std::size_t& payload_nbytes);

}  // namespace gradwire::engine
