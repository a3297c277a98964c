// The inputs of fuzzers: chunks with structure, and damaged payloads.
#pragma once

#include "buffer.h"
#include "random.h"

namespace gradwire::fuzz {

// Returns the number of elements of a chunk: mostly few, now and then enough to be split over threads.
std::size_t random_length(Random& random);

// Gradient-like values, arbitrary bit patterns, ties, huge or tiny values, runs of zeros; some with NaN or infinity.
Buffer<float> random_chunk(Random& random, std::size_t n);

// Flipped bits, another length, foreign bytes or two bytes swapped.
Buffer<std::uint8_t> mutated(Random& random, const Buffer<std::uint8_t>& payload);

}  // namespace gradwire::fuzz
