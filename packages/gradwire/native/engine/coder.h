// The encoding and decoding of segments that the engine can't code itself: their bucket is in a device's memory, or their
// codec is written in Python.
#pragma once

#include <cstddef>

#include "frame.h"

namespace gradwire::engine {

// The operations on segments; `action` is an action's index. A method returns false after an error, which ends the run.
class Coder {
 public:
  Coder() = default;
  Coder(const Coder&) = delete;
  Coder& operator=(const Coder&) = delete;
  virtual ~Coder() = default;

  // Encodes the action's segment to `payload`, which has room for `most_nbytes`, and sets the payload's size.
  virtual bool encode(std::size_t action, Byte* payload, std::size_t most_nbytes, std::size_t& nbytes) = 0;
  // Measures the error of an encoded payload, which is being sent, and adopts the decoded values of finished sums.
  virtual bool sent(std::size_t action, const Byte* payload, std::size_t nbytes) = 0;
  // Adds or stores a received payload. Like `sent`, it doesn't use the payload's memory afterwards.
  virtual bool take(std::size_t action, const Byte* payload, std::size_t nbytes) = 0;
};

}  // namespace gradwire::engine
