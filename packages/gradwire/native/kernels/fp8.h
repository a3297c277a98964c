// Kernels of `fp8`: 8-bit floats (a sign, 4 exponent and 3 mantissa bits, bias 7), with a power-of-two scale per block.
// A code is a sign and a magnitude of 7 bits. Magnitudes below 8 are subnormal, and 0x78 is 256.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"
#include "kernels/walk.h"

namespace gradwire {

// Both functions are only called for exponents of ordinary blocks, kFp8SmallestExponent..254.
struct Fp8Kernels {
  // Encodes n finite values of a block whose largest magnitude has this biased exponent.
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
// two below |u|, or 2^14 for subnormal codes (|u| < 2^-6). The addition itself rounds half to even, and leaves |u| in
// these units in the low bits, 8..16 for normal numbers. The exponent of the addend contributes 8 more for each binade.
inline constexpr std::uint32_t kFp8ExponentMask = 0x7F800000U;
inline constexpr std::uint32_t kFp8SmallestNormal = 121U << 23;  // 2^-6
inline constexpr std::uint32_t kFp8Raise = 20U << 23;
inline constexpr std::uint32_t kFp8RaisedBias = (kFp8SmallestNormal + kFp8Raise) >> 20;

// Decoding reverses this: a float without its 20 lowest bits is a magnitude plus this constant, because the biases
// differ by 120. Subnormal codes are the low bits of a float just above 2^14.
inline constexpr std::uint32_t kFp8Rebias = 120U * 8U;
inline constexpr float kFp8Aligner = 16384.0F;
inline constexpr std::uint32_t kFp8AlignerBits = 0x46800000U;

// Returns a block's exponent byte, given the bits of its largest magnitude.
static inline std::uint32_t fp8_exponent(std::uint32_t peak_bits) {
  const std::uint32_t exponent = peak_bits >> 23;
  return exponent < kFp8SmallestExponent ? 0 : exponent;
}

// Returns the factor that brings a block's largest magnitude into [128, 256).
static inline float fp8_encode_scale(std::uint32_t exponent) { return power_of_two(134 - static_cast<int>(exponent)); }

// Returns the factor of the codes' values. Products are exact, because the codes' last place is 2^-9, so no product is
// subnormal.
static inline float fp8_decode_scale(std::uint32_t exponent) { return power_of_two(static_cast<int>(exponent) - 134); }

// Returns the largest magnitude: 256, or 240 if 256 would decode to 2^128, which is infinite.
static inline std::uint32_t fp8_limit(std::uint32_t exponent) { return exponent == 254 ? 0x77 : 0x78; }

// A code whose magnitude and sign are moved to their places in half precision is its value times 2^-8 (the biases are 7
// and 15), even if subnormal. This factor includes the 2^8. It overflows for the exponent 254, for which the scalar
// kernel is used.
inline constexpr std::uint32_t kFp8LargestViaHalf = 253;
static inline float fp8_decode_scale_of_half(std::uint32_t exponent) {
  return power_of_two(static_cast<int>(exponent) - 126);
}

namespace {

// A target's Encoder and Decoder are constructed with the exponent. encode(x, codes) and decode<kAdd>(codes, out)
// process kStep values. A Decoder converts by way of half precision.
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
