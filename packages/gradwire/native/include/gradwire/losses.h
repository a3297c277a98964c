// The work on decoded values while a cache holds them: encoding errors are stored, their squares are summed, and
// finished sums become averages, all in one pass over memory.
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

// Sums of squares of a bucket's ranges, as in norms.h. The n elements begin at `start` of the bucket. `sums` has a row of
// what was lost; with `compares` two more follow: what was encoded, and what is decoded.
struct RangeSums {
  std::size_t start;
  const std::int64_t* borders;
  std::size_t ranges;
  double* sums;
  bool compares;
};

struct Loss {
  const char* fault;  // null, or what is wrong with the payload; nothing has changed then
  double lost;        // the sum of squares: finite exactly where all that was lost is
  bool finite;        // whether all values are that were adopted and divided
};

// Decodes the encoding of x, in a format with ranges. lost[i] becomes x[i] less what is decoded, unless `lost` is null;
// with `adopts`, x[i] becomes what is decoded, divided by `divisor`. Sums are the same on every target and for every number
// of threads.
Loss lose(const Target& target, const Payload& payload, float* x, float* lost, std::size_t n, bool adopts, float divisor,
          const RangeSums& sums, int threads);

// Decodes to x, and divides it. Returns what is wrong, as Format::decode, and whether all quotients are finite.
const char* decode_finished(const Target& target, const Payload& payload, float* x, std::size_t n, float divisor,
                            bool& finite, int threads);

// A received payload, whose values are added to a segment, and the payload of the sums.
struct Relay {
  Payload received;
  Params params;       // of the encoding of the sums, in the same format
  std::uint8_t* out;   // max_nbytes bytes
  bool adopts;         // whether the segment becomes the decoded sums, divided
  float divisor;
};

// Returns whether `relay` serves a format.
bool relays(const Format& format);

// Adds a payload to x and encodes the sums, tile by tile; the payload of the sums is that of Format::encode. Returns what
// is wrong with the received payload, and whether all adopted values are finite.
const char* relay(const Target& target, const Relay& relay, float* x, std::size_t n, bool& finite, int threads);

// Divides x; returns whether all quotients are finite.
bool finish(const Target& target, float* x, std::size_t n, float divisor, int threads);

}  // namespace gradwire
