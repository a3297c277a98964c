// Kernels of `quantize`: values that share a scale, as signed bytes or nibbles. `bits` is 8 or 4. The codes of n values
// take n * bits / 8 bytes, rounded up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"
#include "kernels/walk.h"

namespace gradwire {

struct QuantizeKernels {
  // Returns the bits of the largest magnitude, kInfinityBits or more if a value is non-finite.
  std::uint32_t (*peak_bits)(const float* x, std::size_t n);
  // Computes code = x * inverse, rounded half to even. The scale guarantees that it is within +-127 or +-7 (see below).
  void (*to_codes)(const float* x, std::size_t n, int bits, float inverse, std::uint8_t* codes);
  void (*from_codes)(const std::uint8_t* codes, std::size_t n, int bits, float scale, float* out, bool add);
  // Returns whether none of the codes in nbytes bytes is the invalid code, -128 or -8.
  bool (*are_codes)(const std::uint8_t* codes, std::size_t nbytes, int bits);
};

extern const QuantizeKernels kQuantizeScalar;
extern const QuantizeKernels kQuantizeAvx2;
extern const QuantizeKernels kQuantizeAvx512;
extern const QuantizeKernels kQuantizeNeon;

// A block's scale, and the factor that encodes its values. `inverse` is 0 if all codes are 0.
struct QuantizeScale {
  float scale;
  float inverse;
};

// Returns a block's scale, given the bits of its largest magnitude. Clearing 8 bits of the scale's mantissa makes code
// * scale exact (7 + 16 bits), so decoding neither rounds nor overflows. It lowers the scale by a fraction of less than
// 2^-15, so that |x| / scale <= 127 (1 + 2^-15) + rounding still rounds to a code within +-127 (or +-7).
static inline QuantizeScale quantize_scale(std::uint32_t peak_bits, int bits) {
  constexpr std::uint32_t kSmallestPeakBits = (127U - 100U) << 23;  // 2^-100, below which 1 / scale nears overflow
  if (peak_bits >= kInfinityBits) return {float_of(kQuietNanBits), 0.0F};
  if (peak_bits < kSmallestPeakBits) return {0.0F, 0.0F};
  const float quotient = float_of(peak_bits) / (bits == 8 ? 127.0F : 7.0F);
  const float scale = float_of(bits_of(quotient) & ~0xFFU);
  return {scale, 1.0F / scale};
}

namespace {

// A target's Codes, for 8 or 4 bits (kBits), is constructed with the factor of values or codes. encode(x, codes)
// encodes kEncoded values, and decode<kAdd>(codes, out) decodes kDecoded values.
template <typename Codes>
void quantize_to_codes(const float* x, std::size_t n, float inverse, std::uint8_t* codes) {
  const Codes to(inverse);
  const auto place = [&](std::size_t i) { return codes + i / (8 / Codes::kBits); };
  const std::size_t i = walk<Codes::kEncoded>(n, [&](std::size_t at) { to.encode(x + at, place(at)); });
  kQuantizeScalar.to_codes(x + i, n - i, Codes::kBits, inverse, place(i));
}

template <typename Codes>
void quantize_from_codes(const std::uint8_t* codes, std::size_t n, float scale, float* out, bool add) {
  const Codes from(scale);
  const auto place = [&](std::size_t i) { return codes + i / (8 / Codes::kBits); };
  const std::size_t i = choose(add, [&](auto chosen) {
    return walk<Codes::kDecoded>(n, [&](std::size_t at) {
      from.template decode<decltype(chosen)::value>(place(at), out + at);
    });
  });
  kQuantizeScalar.from_codes(place(i), n - i, Codes::kBits, scale, out + i, add);
}

template <typename Bytes, typename Nibbles>
void quantize_to(const float* x, std::size_t n, int bits, float inverse, std::uint8_t* codes) {
  bits == 8 ? quantize_to_codes<Bytes>(x, n, inverse, codes) : quantize_to_codes<Nibbles>(x, n, inverse, codes);
}

template <typename Bytes, typename Nibbles>
void quantize_from(const std::uint8_t* codes, std::size_t n, int bits, float scale, float* out, bool add) {
  bits == 8 ? quantize_from_codes<Bytes>(codes, n, scale, out, add)
            : quantize_from_codes<Nibbles>(codes, n, scale, out, add);
}

}  // namespace

}  // namespace gradwire
