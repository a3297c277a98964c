// Checks of every format, on every target and number of threads. They throw Failure.
#pragma once

#include <stdexcept>

#include "buffer.h"
#include "cases.h"
#include "random.h"

namespace gradwire::fuzz {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Encodes on all targets, whose bytes must agree. The payload must be valid, and non-finite values must stay
// non-finite.
Buffer<std::uint8_t> check_encode(const Case& chosen, const Buffer<float>& chunk, Random& random);

// Decodes arbitrary bytes on all targets, which must agree on whether they are a valid payload of n elements, and on
// every decoded bit. An invalid payload must leave the output unchanged, and decode_add must equal decode and an
// addition. Returns whether the payload is valid.
bool check_decode(const Case& chosen, const Buffer<std::uint8_t>& payload, std::size_t n, Random& random);

// Compares the checksums of all targets, also for bytes in two pieces.
void check_crc32c(const Buffer<std::uint8_t>& bytes, Random& random);

}  // namespace gradwire::fuzz
