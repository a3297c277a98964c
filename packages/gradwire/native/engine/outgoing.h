// A run's frames on their way out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "connection.h"
#include "pool.h"

namespace gradwire::engine {

// A sealed frame, and the pool of its memory. `is_finished` if its send needs no more work on the segment's values;
// `values` are those that it carries as they lie in the bucket, which mustn't change until it has left.
struct Frame {
  Byte* memory = nullptr;
  std::size_t nbytes = 0;  // without `values`
  Pool* home = nullptr;
  std::uint32_t sequence = 0;
  bool is_finished = false;
  const float* values = nullptr;
  std::size_t count = 0;

  FrameParts parts() const { return {memory, nbytes, reinterpret_cast<const Byte*>(values), sizeof(float) * count}; }
};

struct InFlight {
  std::size_t action;
  Frame frame;
  std::uint64_t ticket;
};

}  // namespace gradwire::engine
