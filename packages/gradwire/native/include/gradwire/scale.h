// Powers of two: how large a chunk's values are, and the chunk times a power. Both are exact but for what becomes
// subnormal or infinite.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

// The largest x[i] without its sign, as the bits of the float: infinity if a value is infinite, and more if one is NaN.
std::uint32_t largest_bits(const float* x, std::size_t n, int threads);

// out[i] becomes x[i] * 2^exponent, or grows by it with `add`; x may be out. The exponent is from -126 to 127.
void scale(const float* x, float* out, std::size_t n, int exponent, bool add, int threads);

}  // namespace gradwire
