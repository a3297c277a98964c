// Kernels of `ecsq`: values as whole numbers q of steps, before the entropy coder. Two signed nibbles to a byte hold q
// from -7 to 7, the first value in the low one; -8 stands for an escape, a q further from 0 in a word of its own:
// 2 (|q| - 8), plus 1 where q is negative.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"

namespace gradwire {

inline constexpr std::int32_t kFirstEscape = 8;
// Vectors store, and load, so many escapes more than there are.
inline constexpr std::size_t kEcsqSlack = 32;

struct EcsqKernels {
  // q = x * inverse, rounded half to even; |q| is below 2^15. Writes ceil(n / 2) bytes of codes, an unused nibble 0, and
  // the escapes. Returns how many there are; `escapes` has room for n + kEcsqSlack.
  std::size_t (*to_codes)(const float* x, std::size_t n, float inverse, std::uint8_t* codes, std::uint16_t* escapes);
  // How many escapes these bytes of codes have.
  std::size_t (*count_escapes)(const std::uint8_t* codes, std::size_t nbytes);
  // y = q * scale, where the largest q does not overflow; `escapes` has kEcsqSlack words more than these codes need.
  // Returns how many escapes there were.
  std::size_t (*from_codes)(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale,
                            float* out, bool add);
};

extern const EcsqKernels kEcsqScalar;
extern const EcsqKernels kEcsqAvx2;
extern const EcsqKernels kEcsqAvx512;

namespace {

[[maybe_unused]] std::size_t ecsq_count_escapes(const std::uint8_t* codes, std::size_t nbytes) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < nbytes; ++i) {
    count += ((codes[i] & 0x0F) == 0x08 ? 1 : 0) + ((codes[i] & 0xF0) == 0x80 ? 1 : 0);
  }
  return count;
}

}  // namespace

}  // namespace gradwire
