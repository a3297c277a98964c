// The payload of one TCP segment as a body of fewer bytes, and back.
//
// The payload is a piece of a stream of little-endian float32 that begins at byte `phase` of a float. Only its whole
// floats are encoded, by an elementwise format, so any other cut of the stream gives the same values.
//
//   body = bytes before the first whole float | bytes after the last one | the format's payload
#pragma once

#include <cstddef>
#include <vector>

#include "gradwire/format.h"
#include "packet.h"

namespace gradwire::nic {

// The parameters that both ends must share; each number fits into a byte.
struct Codec {
  const Format* format = nullptr;
  Params params;
  Byte wire_id = 0;

  bool operator==(const Codec& other) const {
    return wire_id == other.wire_id && params.a == other.params.a && params.b == other.params.b;
  }
};

// Holds the memory of one thread.
class SegmentCoder {
 public:
  explicit SegmentCoder(const Codec& codec);

  // Writes the body and returns its size, or 0 where it would have `limit` bytes or more, or no float is whole.
  std::size_t encode(unsigned phase, const Byte* payload, std::size_t nbytes, Byte* body, std::size_t limit);

  // Writes a payload of `nbytes`, or returns a fragment of a sentence that says what is wrong with the body.
  const char* decode(unsigned phase, const Byte* body, std::size_t body_nbytes, Byte* payload, std::size_t nbytes);

 private:
  Codec codec_;
  std::vector<float> floats_;
  std::vector<Byte> encoded_;
};

}  // namespace gradwire::nic
