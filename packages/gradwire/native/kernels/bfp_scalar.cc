// The definition of `bfp`, for any number of mantissa bits.
#include "kernels/bfp.h"

#include <array>
#include <utility>

#include "kernels/bit_groups.h"

namespace gradwire {

namespace {

template <int kMantissaBits>
std::uint32_t mantissa_of(float x, float scale) {
  constexpr int kLargest = (1 << kMantissaBits) - 1;
  const int rounded = round_half_even(x * scale);
  const int saturated = rounded > kLargest ? kLargest : rounded < -kLargest ? -kLargest : rounded;
  return static_cast<std::uint32_t>(saturated) & ((2U << kMantissaBits) - 1);
}

// Encodes `count` values, and zeros up to `block`. With a scale of 0, all mantissas are 0, even those of infinity and
// NaN.
template <int kMantissaBits>
void encode_block(const float* x, std::size_t count, std::size_t block, std::uint8_t* out) {
  const std::uint32_t exponent = bfp_exponent(peak_bits_of(x, count));
  const float scale = bfp_encode_scale(exponent, kMantissaBits);
  const std::size_t used = scale == 0.0F ? 0 : count;
  *out++ = static_cast<std::uint8_t>(exponent);
  for (std::size_t at = 0; at < block; at += kGroup, out += kMantissaBits + 1) {
    const std::size_t valid = used <= at ? 0 : used - at < kGroup ? used - at : kGroup;
    std::uint32_t values[kGroup] = {};
    for (std::size_t i = 0; i < valid; ++i) values[i] = mantissa_of<kMantissaBits>(x[at + i], scale);
    pack_group<kMantissaBits + 1>(values, out);
  }
}

template <int kMantissaBits>
void encode_blocks(const float* x, std::size_t n, std::size_t block, std::uint8_t* out) {
  for (std::size_t at = 0; at < n; at += block) {
    encode_block<kMantissaBits>(x + at, n - at < block ? n - at : block, block, out);
    out += bfp_block_nbytes(kMantissaBits, block);
  }
}

template <int kMantissaBits, bool kAdd>
void decode_block(const std::uint8_t* payload, std::size_t count, float* out) {
  constexpr std::uint32_t kSign = 1U << kMantissaBits;
  const float scale = bfp_decode_scale(*payload++, kMantissaBits);
  for (std::size_t at = 0; at < count; at += kGroup, payload += kMantissaBits + 1) {
    std::uint32_t values[kGroup];
    unpack_group<kMantissaBits + 1>(payload, values);
    const std::size_t valid = count - at < kGroup ? count - at : kGroup;
    for (std::size_t i = 0; i < valid; ++i) {
      const int mantissa = static_cast<int>(values[i] ^ kSign) - static_cast<int>(kSign);
      put<kAdd>(out + at + i, static_cast<float>(mantissa) * scale);
    }
  }
}

template <int kMantissaBits, bool kAdd>
void decode_blocks(const std::uint8_t* payload, std::size_t n, std::size_t block, float* out) {
  for (std::size_t at = 0; at < n; at += block) {
    decode_block<kMantissaBits, kAdd>(payload, n - at < block ? n - at : block, out + at);
    payload += bfp_block_nbytes(kMantissaBits, block);
  }
}

struct Width {
  void (*encode)(const float*, std::size_t, std::size_t, std::uint8_t*);
  void (*decode)(const std::uint8_t*, std::size_t, std::size_t, float*);
  void (*decode_add)(const std::uint8_t*, std::size_t, std::size_t, float*);
};

template <int... kIndex>
constexpr std::array<Width, sizeof...(kIndex)> make_widths(std::integer_sequence<int, kIndex...> /*indices*/) {
  return {Width{encode_blocks<kIndex + 1>, decode_blocks<kIndex + 1, false>, decode_blocks<kIndex + 1, true>}...};
}

constexpr auto kWidths = make_widths(std::make_integer_sequence<int, 15>());

const Width& width(int mantissa_bits) { return kWidths[static_cast<std::size_t>(mantissa_bits) - 1]; }

void encode(const float* x, std::size_t n, int mantissa_bits, std::size_t block, std::uint8_t* out) {
  width(mantissa_bits).encode(x, n, block, out);
}

void decode(const std::uint8_t* payload, std::size_t n, int mantissa_bits, std::size_t block, float* out, bool add) {
  (add ? width(mantissa_bits).decode_add : width(mantissa_bits).decode)(payload, n, block, out);
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
