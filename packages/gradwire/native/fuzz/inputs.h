// The fuzzers' inputs: structured chunks, and damaged payloads.
#pragma once

#include "buffer.h"
#include "random.h"

namespace gradwire::fuzz {

// Returns the number of elements of a chunk: mostly small, sometimes large enough for several threads.
std::size_t random_length(Random& random);

// Returns gradient-like values, arbitrary bit patterns, ties, huge or tiny values, or runs of zeros; sometimes with NaN
// or infinity.
Buffer<float> random_chunk(Random& random, std::size_t n);

// Returns a payload with flipped bits, a different length, random bytes, or two bytes swapped.
Buffer<std::uint8_t> mutated(Random& random, const Buffer<std::uint8_t>& payload);

}  // namespace gradwire::fuzz
