// The measurement of a run's encoding error, as gradwire/exchange/norms.py defines it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradwire/losses.h"
#include "gradwire/target.h"

namespace gradwire::engine {

struct Segment {
  float* values;
  std::size_t start;  // position in the bucket
  std::size_t count;
};

// The memory for a run's encoding error: none, the sums of squares of each range of the bucket, or these sums and the
// error of each value.
struct Errors {
  float* lost = nullptr;  // the error of each value; null without error feedback
  const std::int64_t* borders = nullptr;
  std::size_t ranges = 0;
  double* sums = nullptr;  // three rows; null for no measurement

  bool are_measured() const { return sums != nullptr; }

  // Adds the error of a payload that encodes the segment. With `adopts`, replaces the segment's values with the decoded
  // values, divided by `divisor`. `scratch` is memory for the decoded values.
  Loss measure(const Target& target, const Payload& payload, const Segment& segment, bool adopts, float divisor,
               std::vector<float>& scratch, int threads) const;

 private:
  Loss measure_whole(const Target& target, const Payload& payload, const Segment& segment, float* decoded, bool adopts,
                     float divisor, int threads) const;
};

}  // namespace gradwire::engine
