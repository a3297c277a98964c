// The properties of every format, on every target and number of threads. Failures throw Failure.
#pragma once

#include <stdexcept>

#include "buffer.h"
#include "cases.h"
#include "random.h"

namespace gradwire::fuzz {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Encodes on all targets; the bytes must agree. Then the payload must be accepted and keep non-finite values so.
Buffer<std::uint8_t> check_encode(const Case& chosen, const Buffer<float>& chunk, Random& random);

// Decodes arbitrary bytes on all targets, which must agree on whether they are a payload of n elements, and on every
// bit. A refused payload must leave the output untouched; decode_add must equal decode and an addition. Returns
// whether it was accepted.
bool check_decode(const Case& chosen, const Buffer<std::uint8_t>& payload, std::size_t n, Random& random);

// The checksum of all targets must agree, also when the bytes come in two pieces.
void check_crc32c(const Buffer<std::uint8_t>& bytes, Random& random);

}  // namespace gradwire::fuzz
