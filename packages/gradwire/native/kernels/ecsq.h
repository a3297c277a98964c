// Kernels of `ecsq`: values as integer multiples q of a step, before entropy coding. A byte has two signed nibbles, the
// first value in the low one, with q from -7 to 7. The nibble -8 marks an escape: q is larger and has a separate word,
// 2 (|q| - 8), plus 1 if q is negative.
//
// A value with q = 0 may have a foot: a symbol for its remainder, |x| <= scale / 2, with one bit of mantissa. Foot 0 is
// 0. Foot 1 + 2 d, plus 1 if x is negative, is scale times the float d places below 1 / 2 among the floats with one
// explicit mantissa bit. With d up to 30, feet reach down to 2^-16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"
#include "kernels/walk.h"

namespace gradwire {

inline constexpr std::int32_t kFirstEscape = 8;
// The number of escapes past the last one that vectors may store and load.
inline constexpr std::size_t kEcsqSlack = 32;
// Floats with one mantissa bit are consecutive integers once the other bits are shifted out.
inline constexpr unsigned kFootShift = 22;
inline constexpr std::uint32_t kFirstFoot = 126U << 1;  // 1 / 2
inline constexpr std::uint32_t kLastFoot = kFirstFoot - 30;
inline constexpr std::uint8_t kMostFoot = 62;

struct EcsqKernels {
  // Computes q = x * inverse, rounded half to even; |q| is below 2^15. Writes ceil(n / 2) bytes of codes, with an
  // unused nibble 0, and the escapes. Returns the number of escapes; `escapes` has room for n + kEcsqSlack.
  std::size_t (*to_codes)(const float* x, std::size_t n, float inverse, std::uint8_t* codes, std::uint16_t* escapes);
  // Returns the number of nibbles in these bytes of codes that equal `nibble`.
  std::size_t (*count)(const std::uint8_t* codes, std::size_t nbytes, std::uint8_t nibble);
  // Computes y = q * scale; the largest product mustn't overflow. `escapes` has kEcsqSlack more words than these codes
  // need. Returns the number of escapes.
  std::size_t (*from_codes)(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale,
                            float* out, bool add);
  // Writes the feet of the values with q = 0, and returns their number. `feet` has room for n + kEcsqSlack.
  std::size_t (*to_feet)(const float* x, std::size_t n, float inverse, std::uint8_t* feet);
  // Adds the feet of the nibbles 0, and returns their number. `feet` has kEcsqSlack more symbols than these codes need.
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

// A target's Codes is constructed with the factor of values or codes. Its steps advance the arguments passed by
// reference: to_codes(x, codes, escapes) encodes kEncoded values, from_codes<kAdd>(codes, escapes, out) decodes
// kDecoded values, count(codes, nibble) counts in kCounted bytes, and to_feet(x, feet) encodes kWithFeet values.
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

// The kernel of targets on which vectors aren't faster.
[[maybe_unused]] std::size_t ecsq_add_feet(const std::uint8_t* codes, const std::uint8_t* feet, std::size_t n,
                                           float scale, float* out) {
  return kEcsqScalar.add_feet(codes, feet, n, scale, out);
}

}  // namespace

}  // namespace gradwire
