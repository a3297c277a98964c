// The work on decoded values while they are in the cache: encoding errors are stored, their squares are summed, and
// finished sums are divided, all in one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/format.h"

namespace gradwire {

struct Payload {
  const Format& format;
  Params params;
  const std::uint8_t* data;
  std::size_t nbytes;
};

// Sums of squares of a bucket's ranges, as in norms.h. The n elements begin at `start` of the bucket. `sums` has a row
// for the encoding errors; with `compares`, two rows follow, for the values before encoding and after decoding.
struct RangeSums {
  std::size_t start;
  const std::int64_t* borders;
  std::size_t ranges;
  double* sums;
  bool compares;
};

struct Loss {
  const char* fault;  // null, or the fault in the payload, after which nothing has changed
  double lost;        // the sum of squared errors: finite if and only if all errors are
  bool finite;        // whether all adopted, divided values are finite
};

// Decodes the encoding of x, in a format with ranges. Unless `lost` is null, lost[i] becomes x[i] minus the decoded
// value. With `adopts`, x[i] becomes the decoded value, divided by `divisor`. Sums are the same on every target and for
// every number of threads.
Loss lose(const Target& target, const Payload& payload, float* x, float* lost, std::size_t n, bool adopts, float divisor,
          const RangeSums& sums, int threads);

// Decodes to x, and divides it. Returns the fault, like Format::decode, and whether all quotients are finite.
const char* decode_finished(const Target& target, const Payload& payload, float* x, std::size_t n, float divisor,
                            bool& finite, int threads);

// A received payload, whose values are added to a segment, and the memory for the payload of the sums.
struct Relay {
  Payload received;
  Params params;       // the parameters for encoding the sums, in the same format
  std::uint8_t* out;   // max_nbytes bytes
  bool adopts;         // whether the segment becomes the decoded sums, divided
  float divisor;
};

// Returns whether `relay` supports a format.
bool relays(const Format& format);

// Adds a payload to x and encodes the sums, tile by tile, as Format::encode does. Returns the fault in the received
// payload, and whether all adopted values are finite.
const char* relay(const Target& target, const Relay& relay, float* x, std::size_t n, bool& finite, int threads);

// Divides x; returns whether all quotients are finite.
bool finish(const Target& target, float* x, std::size_t n, float divisor, int threads);

}  // namespace gradwire
