// The largest magnitude of a chunk, and the product of a chunk and a power of two. Both are exact, except for products
// that are subnormal or infinite.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

// Returns the bits of the largest magnitude: infinity if a value is infinite, and larger bits if a value is NaN.
std::uint32_t largest_bits(const float* x, std::size_t n, int threads);

// Sets out[i] to x[i] * 2^exponent or, with `add`, adds the product to it. x may be out. The exponent is from -126 to
// 127.
void scale(const float* x, float* out, std::size_t n, int exponent, bool add, int threads);

}  // namespace gradwire
