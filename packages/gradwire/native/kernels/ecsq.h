// Kernels of `ecsq`: values as whole numbers q of steps, before the entropy coder. Two signed nibbles to a byte hold q
// from -7 to 7, the first value in the low one; -8 stands for an escape, a q further from 0 in a word of its own:
// 2 (|q| - 8), plus 1 where q is negative.
//
// A value with q = 0 may have a foot, a symbol for what is left of it, |x| <= scale / 2, in powers of the square root of
// two or so: one bit of mantissa. Foot 0 is 0; foot 1 + 2 d + (1 where x is negative) is the float d places below 1 / 2
// among those whose mantissa has one bit after its first, times scale. With d up to 30, feet reach down to 2^-16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"
#include "kernels/walk.h"

namespace gradwire {

inline constexpr std::int32_t kFirstEscape = 8;
// The escapes beyond the last one that vectors may store and load.
inline constexpr std::size_t kEcsqSlack = 32;
// Floats of one bit of mantissa are whole numbers once their other bits are shifted away.
inline constexpr unsigned kFootShift = 22;
inline constexpr std::uint32_t kFirstFoot = 126U << 1;  // 1 / 2
inline constexpr std::uint32_t kLastFoot = kFirstFoot - 30;
inline constexpr std::uint8_t kMostFoot = 62;

struct EcsqKernels {
  // q = x * inverse, rounded half to even; |q| is below 2^15. Writes ceil(n / 2) bytes of codes, an unused nibble 0, and
  // the escapes. Returns how many there are; `escapes` has room for n + kEcsqSlack.
  std::size_t (*to_codes)(const float* x, std::size_t n, float inverse, std::uint8_t* codes, std::uint16_t* escapes);
  // Returns the number of nibbles of these bytes of codes that are `nibble`.
  std::size_t (*count)(const std::uint8_t* codes, std::size_t nbytes, std::uint8_t nibble);
  // y = q * scale, where the largest q does not overflow; `escapes` has kEcsqSlack words more than these codes need.
  // Returns how many escapes there were.
  std::size_t (*from_codes)(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale,
                            float* out, bool add);
  // The feet of the values with q = 0. Returns how many there are; `feet` has room for n + kEcsqSlack.
  std::size_t (*to_feet)(const float* x, std::size_t n, float inverse, std::uint8_t* feet);
  // Adds the feet of the nibbles 0; they have kEcsqSlack symbols more than these codes need. Returns how many there were.
  std::size_t (*add_feet)(const std::uint8_t* codes, const std::uint8_t* feet, std::size_t n, float scale, float* out);
};

extern const EcsqKernels kEcsqScalar;
extern const EcsqKernels kEcsqAvx2;
extern const EcsqKernels kEcsqAvx512;
extern const EcsqKernels kEcsqNeon;

namespace {

[[maybe_unused]] std::size_t ecsq_count(const std::uint8_t* codes, std::size_t nbytes, std::uint8_t nibble) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < nbytes; ++i) {
    count += ((codes[i] & 0x0F) == nibble ? 1 : 0) + (codes[i] >> 4 == nibble ? 1 : 0);
  }
  return count;
}

// A target's Codes is made with what values or codes are multiplied by. Its steps: to_codes(x, codes, escapes) takes
// kEncoded values; from_codes<kAdd>(codes, escapes, out) gives kDecoded; count(codes, nibble) looks at kCounted bytes;
// to_feet(x, feet) takes kWithFeet values; all move on what they are given by reference.
template <typename Codes>
std::size_t ecsq_to_codes(const float* x, std::size_t n, float inverse, std::uint8_t* codes, std::uint16_t* escapes) {
  const Codes to(inverse);
  std::uint16_t* next = escapes;
  const std::size_t i =
      walk<Codes::kEncoded>(n, [&](std::size_t at) { to.to_codes(x + at, codes + at / 2, next); });
  next += kEcsqScalar.to_codes(x + i, n - i, inverse, codes + i / 2, next);
  return static_cast<std::size_t>(next - escapes);
}

template <typename Codes>
std::size_t ecsq_count_by(const std::uint8_t* codes, std::size_t nbytes, std::uint8_t nibble) {
  std::size_t found = 0;
  const std::size_t i =
      walk<Codes::kCounted>(nbytes, [&](std::size_t at) { found += Codes::count(codes + at, nibble); });
  return found + ecsq_count(codes + i, nbytes - i, nibble);
}

template <typename Codes>
std::size_t ecsq_from_codes(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale,
                            float* out, bool add) {
  const Codes from(scale);
  const std::uint16_t* next = escapes;
  const std::size_t i = choose(add, [&](auto chosen) {
    return walk<Codes::kDecoded>(n, [&](std::size_t at) {
      from.template from_codes<decltype(chosen)::value>(codes + at / 2, next, out + at);
    });
  });
  next += kEcsqScalar.from_codes(codes + i / 2, next, n - i, scale, out + i, add);
  return static_cast<std::size_t>(next - escapes);
}

template <typename Codes>
std::size_t ecsq_to_feet(const float* x, std::size_t n, float inverse, std::uint8_t* feet) {
  const Codes to(inverse);
  std::uint8_t* next = feet;
  const std::size_t i = walk<Codes::kWithFeet>(n, [&](std::size_t at) { to.to_feet(x + at, next); });
  next += kEcsqScalar.to_feet(x + i, n - i, inverse, next);
  return static_cast<std::size_t>(next - feet);
}

// The kernel of targets without a gain from vectors.
[[maybe_unused]] std::size_t ecsq_add_feet(const std::uint8_t* codes, const std::uint8_t* feet, std::size_t n,
                                           float scale, float* out) {
  return kEcsqScalar.add_feet(codes, feet, n, scale, out);
}

}  // namespace

}  // namespace gradwire
