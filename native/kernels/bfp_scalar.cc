// The definition of `bfp`, for any number of mantissa bits: a 32-bit window slides over the bytes of a block.
#include "kernels/bfp.h"

namespace gradwire {

namespace {

int mantissa_of(float x, float scale, int largest) {
  if (scale == 0.0F) return 0;
  const int rounded = round_half_even(x * scale);
  return rounded > largest ? largest : rounded < -largest ? -largest : rounded;
}

// `count` values and zeros up to `block`.
void encode_block(const float* x, std::size_t count, int mantissa_bits, std::size_t block, std::uint8_t* out) {
  const std::uint32_t exponent = bfp_exponent(peak_bits_of(x, count));
  const float scale = bfp_encode_scale(exponent, mantissa_bits);
  const int largest = (1 << mantissa_bits) - 1;
  const std::uint32_t mask = (2U << mantissa_bits) - 1;
  *out++ = static_cast<std::uint8_t>(exponent);
  std::uint32_t window = 0;
  int filled = 0;
  for (std::size_t i = 0; i < block; ++i) {
    const int mantissa = i < count ? mantissa_of(x[i], scale, largest) : 0;
    window |= (static_cast<std::uint32_t>(mantissa) & mask) << filled;
    for (filled += mantissa_bits + 1; filled >= 8; filled -= 8) {
      *out++ = static_cast<std::uint8_t>(window);
      window >>= 8;
    }
  }
}

void encode(const float* x, std::size_t n, int mantissa_bits, std::size_t block, std::uint8_t* out) {
  for (std::size_t at = 0; at < n; at += block) {
    encode_block(x + at, n - at < block ? n - at : block, mantissa_bits, block, out);
    out += bfp_block_nbytes(mantissa_bits, block);
  }
}

template <bool kAdd>
void decode_block(const std::uint8_t* payload, std::size_t count, int mantissa_bits, float* out) {
  const float scale = bfp_decode_scale(*payload++, mantissa_bits);
  const std::uint32_t sign = 1U << mantissa_bits;
  const std::uint32_t mask = 2 * sign - 1;
  std::uint32_t window = 0;
  int filled = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (; filled <= mantissa_bits; filled += 8) window |= static_cast<std::uint32_t>(*payload++) << filled;
    const auto mantissa = static_cast<std::int32_t>((window & mask) ^ sign) - static_cast<std::int32_t>(sign);
    put<kAdd>(out + i, static_cast<float>(mantissa) * scale);
    window >>= mantissa_bits + 1;
    filled -= mantissa_bits + 1;
  }
}

template <bool kAdd>
void decode_as(const std::uint8_t* payload, std::size_t n, int mantissa_bits, std::size_t block, float* out) {
  for (std::size_t at = 0; at < n; at += block) {
    decode_block<kAdd>(payload, n - at < block ? n - at : block, mantissa_bits, out + at);
    payload += bfp_block_nbytes(mantissa_bits, block);
  }
}

void decode(const std::uint8_t* payload, std::size_t n, int mantissa_bits, std::size_t block, float* out, bool add) {
  add ? decode_as<true>(payload, n, mantissa_bits, block, out)
      : decode_as<false>(payload, n, mantissa_bits, block, out);
}

constexpr BfpByteScales make_byte_scales() {
  BfpByteScales scales{};
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) scales.of[exponent] = bfp_decode_scale(exponent, 7);
  return scales;
}

}  // namespace

constinit const BfpByteScales kBfpByteScales = make_byte_scales();

const BfpKernels kBfpScalar = {.encode = encode, .decode = decode};

}  // namespace gradwire
