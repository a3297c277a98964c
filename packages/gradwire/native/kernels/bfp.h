// Kernels of `bfp`: block floating point, with a shared exponent and two's complement mantissas for each block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"
#include "kernels/walk.h"

namespace gradwire {

struct BfpKernels {
  // Encodes n values as ceil(n / block) blocks of bfp_block_nbytes each. The last block may be short.
  void (*encode)(const float* x, std::size_t n, int mantissa_bits, std::size_t block, std::uint8_t* out);
  void (*decode)(const std::uint8_t* payload, std::size_t n, int mantissa_bits, std::size_t block, float* out,
                 bool add);
};

extern const BfpKernels kBfpScalar;
extern const BfpKernels kBfpAvx2;
extern const BfpKernels kBfpAvx512;
extern const BfpKernels kBfpNeon;

inline constexpr std::uint32_t kBfpNanExponent = 255;
// Blocks of smaller exponents (below 2^-95) are flushed to zero.
inline constexpr std::uint32_t kBfpSmallestExponent = 32;

static inline std::size_t bfp_block_nbytes(int mantissa_bits, std::size_t block) {
  return 1 + block * static_cast<std::size_t>(mantissa_bits + 1) / 8;
}

// Returns a block's exponent byte, given the bits of its largest magnitude.
static inline std::uint32_t bfp_exponent(std::uint32_t peak_bits) {
  const std::uint32_t exponent = peak_bits >> 23;
  return exponent < kBfpSmallestExponent ? 0 : exponent;
}

// Returns the factor by which values are multiplied before rounding, or 0 if all mantissas are 0.
static inline float bfp_encode_scale(std::uint32_t exponent, int mantissa_bits) {
  if (exponent == 0 || exponent == kBfpNanExponent) return 0.0F;
  return power_of_two(mantissa_bits - 1 + 127 - static_cast<int>(exponent));
}

// Returns the factor by which mantissas are multiplied. The products are exact, because a mantissa has at most 16 bits,
// and the factor is a power of two.
static constexpr float bfp_decode_scale(std::uint32_t exponent, int mantissa_bits) {
  if (exponent == 0) return 0.0F;
  if (exponent == kBfpNanExponent) return float_of(kQuietNanBits);
  return power_of_two(static_cast<int>(exponent) - 127 - (mantissa_bits - 1));
}

// bfp_decode_scale by exponent byte for 7 mantissa bits, the vectorised case: one load instead of three cases.
struct BfpByteScales {
  float of[256];
};
extern const BfpByteScales kBfpByteScales;

namespace {

// Vector kernels process blocks of 16 k values with 7 mantissa bits, whose mantissas are whole bytes; other blocks use
// the portable kernel. A target's Blocks has encode(x, block, out) and decode<kAdd>(payload, block, out) for one block,
// and encode_16(x, out) for k16Blocks blocks of 16, the paper's size.
inline constexpr int kBfpByteMantissa = 7;

[[maybe_unused]] bool bfp_is_vectored(int mantissa_bits, std::size_t block) {
  return mantissa_bits == kBfpByteMantissa && block % 16 == 0;
}

template <typename Blocks>
void bfp_encode(const float* x, std::size_t n, int mantissa_bits, std::size_t block, std::uint8_t* out) {
  std::size_t at = 0;
  if (bfp_is_vectored(mantissa_bits, block)) {
    if (block == 16) {  // without inner loops
      constexpr std::size_t kStep = 16 * Blocks::k16Blocks;
      at = walk<kStep>(n, [&](std::size_t i) { Blocks::encode_16(x + i, out + i / 16 * 17); });
      out += at / 16 * 17;
    }
    for (; at + block <= n; at += block, out += block + 1) Blocks::encode(x + at, block, out);
  }
  kBfpScalar.encode(x + at, n - at, mantissa_bits, block, out);
}

template <typename Blocks, bool kAdd>
std::size_t bfp_decode_blocks(const std::uint8_t* payload, std::size_t n, std::size_t block, float* out) {
  if (block == 16) {
    return walk<16>(n, [&](std::size_t i) { Blocks::template decode<kAdd>(payload + i / 16 * 17, 16, out + i); });
  }
  std::size_t at = 0;
  for (; at + block <= n; at += block, payload += block + 1) Blocks::template decode<kAdd>(payload, block, out + at);
  return at;
}

template <typename Blocks>
void bfp_decode(const std::uint8_t* payload, std::size_t n, int mantissa_bits, std::size_t block, float* out,
                bool add) {
  std::size_t at = 0;
  if (bfp_is_vectored(mantissa_bits, block)) {
    at = choose(add, [&](auto chosen) {
      return bfp_decode_blocks<Blocks, decltype(chosen)::value>(payload, n, block, out);
    });
  }
  kBfpScalar.decode(payload + at / block * bfp_block_nbytes(mantissa_bits, block), n - at, mantissa_bits, block,
                    out + at, add);
}

}  // namespace

}  // namespace gradwire
