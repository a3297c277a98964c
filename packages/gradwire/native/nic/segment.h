// The compression of one TCP segment's payload to a shorter body, and its decompression.
//
// The payload is a part of a stream of little-endian float32, and begins at byte `phase` of a float. Only whole floats
// are encoded, by an elementwise format, so the values don't depend on where the stream is cut.
//
//   body = bytes before the first whole float | bytes after the last one | the format's payload
#pragma once

#include <cstddef>
#include <vector>

#include "gradwire/format.h"
#include "packet.h"

namespace gradwire::nic {

// The parameters, which must be the same at both ends. Each number fits into a byte.
struct Codec {
  const Format* format = nullptr;
  Params params;
  Byte wire_id = 0;
};

// An encoder and decoder of segments, with one thread's memory.
class SegmentCoder {
 public:
  explicit SegmentCoder(const Codec& codec);

  // Writes the body and returns its size, or 0 if it would have at least `limit` bytes, or there is no whole float.
  std::size_t encode(unsigned phase, const Byte* payload, std::size_t nbytes, Byte* body, std::size_t limit);

  // Writes a payload of `nbytes` and returns null, or returns the body's fault as a sentence fragment.
  const char* decode(unsigned phase, const Byte* body, std::size_t body_nbytes, Byte* payload, std::size_t nbytes);

 private:
  Codec codec_;
  std::vector<float> floats_;
  std::vector<Byte> encoded_;
};

}  // namespace gradwire::nic
