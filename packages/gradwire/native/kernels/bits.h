// Bits and bytes of floats. Everything here is `static inline`: each kernel file is compiled for a different
// instruction set, and a shared (COMDAT) copy could be one that an older machine can't run (for the same reason, there
// is no std::bit_cast).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradwire {

inline constexpr std::uint32_t kMagnitudeMask = 0x7FFFFFFFU;
inline constexpr std::uint32_t kInfinityBits = 0x7F800000U;
inline constexpr std::uint32_t kQuietNanBits = 0x7FC00000U;

static constexpr std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }

static constexpr float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Reads and writes little-endian words at any address.
template <typename Word>
static inline Word load_word(const std::uint8_t* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

template <typename Word>
static inline void store_word(std::uint8_t* to, Word word) {
  std::memcpy(to, &word, sizeof word);
}

// The only place where decode and decode_add differ: the old value is the left operand of a single float addition.
template <bool kAdd>
static inline void put(float* out, float value) {
  *out = kAdd ? *out + value : value;
}

// Rounds |value| < 2^22 to the nearest integer, ties to even: adding 1.5 * 2^23 leaves no bits for a fraction, so the
// addition itself rounds, and the integer is in the low bits. Unlike std::nearbyint, this needs no library call.
static inline std::int32_t round_half_even(float value) {
  return static_cast<std::int32_t>(bits_of(value + 0x1.8p23F) - 0x4B400000U);
}

// Rounds to bfloat16, to nearest even. A NaN is truncated and made quiet.
static inline std::uint16_t bf16_of(float value) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & kMagnitudeMask) > kInfinityBits) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

// Returns 2^exponent for -149 <= exponent <= 127, including subnormals.
static constexpr float power_of_two(int exponent) {
  return float_of(exponent >= -126 ? static_cast<std::uint32_t>(exponent + 127) << 23 : 1U << (exponent + 149));
}

// Returns the largest |x| as bits. Without a sign, floats sort like their bits, and the bits of infinity and NaN are
// kInfinityBits or more.
static inline std::uint32_t peak_bits_of(const float* x, std::size_t n) {
  std::uint32_t peak = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t magnitude = bits_of(x[i]) & kMagnitudeMask;
    peak = magnitude > peak ? magnitude : peak;
  }
  return peak;
}

}  // namespace gradwire
