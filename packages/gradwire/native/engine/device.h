// A bucket in a device's memory, which the engine can't read, and the encoding and decoding of the bucket's segments.
#pragma once

#include <cstddef>

#include "frame.h"

namespace gradwire::engine {

// The operations on a device's bucket; `action` is an action's index. A method returns false after an error, which ends
// the run.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  // Encodes the action's segment to `payload`, which has room for `most_nbytes`, and sets the payload's size.
  virtual bool encode(std::size_t action, Byte* payload, std::size_t most_nbytes, std::size_t& nbytes) = 0;
  // Adds or stores a received payload. Afterwards, the method no longer uses the payload's memory.
  virtual bool take(std::size_t action, const Byte* payload, std::size_t nbytes) = 0;
};

}  // namespace gradwire::engine
