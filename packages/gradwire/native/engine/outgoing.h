// A run's outgoing frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "connection.h"
#include "pool.h"

namespace gradwire::engine {

// A sealed frame, and the pool of its memory. If `is_finished`, the segment's values need no more work after the send.
// `values` are the values that are sent directly from the bucket, if any; they mustn't change until the frame is sent.
struct Frame {
  Byte* memory = nullptr;
  std::size_t nbytes = 0;  // of `memory`
  Pool* home = nullptr;
  std::uint32_t sequence = 0;
  bool is_finished = false;
  const float* values = nullptr;
  std::size_t count = 0;

  FrameParts parts() const { return {memory, nbytes, reinterpret_cast<const Byte*>(values), sizeof(float) * count}; }
};

// Removes and returns the frame that was encoded early for an action; a frame without memory if there is none.
inline Frame take_ready(std::map<std::size_t, Frame>& ready, std::size_t action) {
  const auto found = ready.find(action);
  if (found == ready.end()) return {};
  const Frame frame = found->second;
  ready.erase(found);
  return frame;
}

struct InFlight {
  std::size_t action;
  Frame frame;
  std::uint64_t ticket;
};

}  // namespace gradwire::engine
