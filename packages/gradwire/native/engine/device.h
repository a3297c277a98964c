// A bucket in memory that the engine can't read, and the encoding and decoding of its segments there.
#pragma once

#include <cstddef>

#include "frame.h"

namespace gradwire::engine {

// The work on a device's bucket, by the index of an action. A method returns false after an error, which ends the run.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  // Encodes the action's segment to `payload`, which has room for `most_nbytes`, and sets the payload's size.
  virtual bool encode(std::size_t action, Byte* payload, std::size_t most_nbytes, std::size_t& nbytes) = 0;
  // Adds or stores a received payload, whose memory is the caller's again when the method returns.
  virtual bool take(std::size_t action, const Byte* payload, std::size_t nbytes) = 0;
};

}  // namespace gradwire::engine
