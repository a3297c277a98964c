// Kernels of `fp8`: 8-bit floats (a sign, 4 exponent and 3 mantissa bits, bias 7) beside a power of two that a block
// shares. A code is a sign and a magnitude of 7 bits; magnitudes below 8 are subnormal, 0x78 is 256.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"
#include "kernels/walk.h"

namespace gradwire {

// Both are called for the exponents of ordinary blocks alone, kFp8SmallestExponent..254.
struct Fp8Kernels {
  // n finite values of a block whose largest magnitude has this biased exponent.
  void (*to_codes)(const float* x, std::size_t n, std::uint32_t exponent, std::uint8_t* codes);
  void (*from_codes)(const std::uint8_t* codes, std::size_t n, std::uint32_t exponent, float* out, bool add);
};

extern const Fp8Kernels kFp8Scalar;
extern const Fp8Kernels kFp8Avx2;
extern const Fp8Kernels kFp8Avx512;
extern const Fp8Kernels kFp8Neon;

inline constexpr std::uint32_t kFp8NanExponent = 255;
// Blocks of smaller exponents (below 2^-95) are flushed to zero.
inline constexpr std::uint32_t kFp8SmallestExponent = 32;

// Encoding |u| < 256 adds the power of two whose unit in the last place is that of u's code: 2^20 times the power of
// two below |u|, or 2^14 for subnormal codes, all below 2^-6. The addition itself rounds half to even, and leaves |u|
// in units in the low bits, 8..16 for normal numbers; the exponent of what was added brings 8 more for each binade.
inline constexpr std::uint32_t kFp8ExponentMask = 0x7F800000U;
inline constexpr std::uint32_t kFp8SmallestNormal = 121U << 23;  // 2^-6
inline constexpr std::uint32_t kFp8Raise = 20U << 23;
inline constexpr std::uint32_t kFp8RaisedBias = (kFp8SmallestNormal + kFp8Raise) >> 20;

// Decoding goes the other way: a float without its 20 lowest bits is a magnitude plus this, as the biases differ by
// 120, and subnormal codes are the last places of a float next to 2^14.
inline constexpr std::uint32_t kFp8Rebias = 120U * 8U;
inline constexpr float kFp8Aligner = 16384.0F;
inline constexpr std::uint32_t kFp8AlignerBits = 0x46800000U;

// The exponent byte of a block from the bits of its largest magnitude.
static inline std::uint32_t fp8_exponent(std::uint32_t peak_bits) {
  const std::uint32_t exponent = peak_bits >> 23;
  return exponent < kFp8SmallestExponent ? 0 : exponent;
}

// Returns the factor of values that brings the largest of the block into [128, 256).
static inline float fp8_encode_scale(std::uint32_t exponent) { return power_of_two(134 - static_cast<int>(exponent)); }

// Returns the factor of the values of codes. Exact: their last place is 2^-9, so the product is never subnormal.
static inline float fp8_decode_scale(std::uint32_t exponent) { return power_of_two(static_cast<int>(exponent) - 134); }

// The largest magnitude: 256, but 240 where 256 would decode to 2^128, which is infinite.
static inline std::uint32_t fp8_limit(std::uint32_t exponent) { return exponent == 254 ? 0x77 : 0x78; }

// A code's magnitude and sign moved to where half precision has them is its value times 2^-8 (the biases 7 and 15),
// subnormal or not; this takes the 2^8 along. It overflows for the exponent 254, which is left to the scalar kernel.
inline constexpr std::uint32_t kFp8LargestViaHalf = 253;
static inline float fp8_decode_scale_of_half(std::uint32_t exponent) {
  return power_of_two(static_cast<int>(exponent) - 126);
}

namespace {

// A target's Encoder and Decoder are made with the exponent; encode(x, codes) and decode<kAdd>(codes, out) take or give
// kStep values. A Decoder goes by way of half precision.
template <typename Encoder>
void fp8_to_codes(const float* x, std::size_t n, std::uint32_t exponent, std::uint8_t* codes) {
  const Encoder to(exponent);
  const std::size_t i = walk<Encoder::kStep>(n, [&](std::size_t at) { to.encode(x + at, codes + at); });
  kFp8Scalar.to_codes(x + i, n - i, exponent, codes + i);
}

template <typename Decoder>
void fp8_from_codes(const std::uint8_t* codes, std::size_t n, std::uint32_t exponent, float* out, bool add) {
  std::size_t i = 0;
  if (exponent <= kFp8LargestViaHalf) {
    const Decoder from(exponent);
    i = choose(add, [&](auto chosen) {
      return walk<Decoder::kStep>(n, [&](std::size_t at) {
        from.template decode<decltype(chosen)::value>(codes + at, out + at);
      });
    });
  }
  kFp8Scalar.from_codes(codes + i, n - i, exponent, out + i, add);
}

}  // namespace

}  // namespace gradwire
