// The codes of `ecsq`, 32 values at a time, and its feet, 4 at a time. Escapes are rare: 32 values with one among them
// take the portable kernel.
#include "kernels/ecsq.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

uint8x16_t is_far(int8x16_t codes) {
  return vcgtq_s8(vqabsq_s8(codes), vdupq_n_s8(kFirstEscape - 1));  // saturated, so that -128 is far, too
}

std::size_t to_codes(const float* x, std::size_t n, float inverse, std::uint8_t* codes, std::uint16_t* escapes) {
  const float32x4_t factor = vdupq_n_f32(inverse);
  std::uint16_t* at = escapes;
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const int8x16_t first = rounded16(x + i, factor);
    const int8x16_t second = rounded16(x + i + 16, factor);
    if (any_of(vorrq_u8(is_far(first), is_far(second)))) {
      at += kEcsqScalar.to_codes(x + i, 32, inverse, codes + i / 2, at);
    } else {
      vst1q_u8(codes + i / 2, join_nibbles(first, second));
    }
  }
  at += kEcsqScalar.to_codes(x + i, n - i, inverse, codes + i / 2, at);
  return static_cast<std::size_t>(at - escapes);
}

std::size_t count(const std::uint8_t* codes, std::size_t nbytes, std::uint8_t nibble) {
  const uint8x16_t wanted = vdupq_n_u8(nibble);
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + 16 <= nbytes; i += 16) {
    const uint8x16_t bytes = vld1q_u8(codes + i);
    const uint8x16_t low = vceqq_u8(vandq_u8(bytes, vdupq_n_u8(0x0F)), wanted);
    const uint8x16_t high = vceqq_u8(vshrq_n_u8(bytes, 4), wanted);
    found += vaddvq_u8(vaddq_u8(vshrq_n_u8(low, 7), vshrq_n_u8(high, 7)));
  }
  return found + ecsq_count(codes + i, nbytes - i, nibble);
}

template <bool kAdd>
std::size_t from_codes_as(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale,
                          float* out) {
  const float32x4_t factor = vdupq_n_f32(scale);
  const int8x16_t escape = vdupq_n_s8(-8);
  const std::uint16_t* at = escapes;
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const int8x16x2_t both = split_nibbles(vld1q_u8(codes + i / 2));
    if (any_of(vorrq_u8(vceqq_s8(both.val[0], escape), vceqq_s8(both.val[1], escape)))) {
      at += kEcsqScalar.from_codes(codes + i / 2, at, 32, scale, out + i, kAdd);
    } else {
      put_scaled<kAdd>(out + i, both.val[0], factor);
      put_scaled<kAdd>(out + i + 16, both.val[1], factor);
    }
  }
  at += kEcsqScalar.from_codes(codes + i / 2, at, n - i, scale, out + i, kAdd);
  return static_cast<std::size_t>(at - escapes);
}

std::size_t from_codes(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale, float* out,
                       bool add) {
  return add ? from_codes_as<true>(codes, escapes, n, scale, out) : from_codes_as<false>(codes, escapes, n, scale, out);
}

// Vectors make the symbols of all values. Each is stored; one with another q than 0 is overwritten by the next.
std::size_t to_feet(const float* x, std::size_t n, float inverse, std::uint8_t* feet) {
  const float32x4_t factor = vdupq_n_f32(inverse);
  std::uint8_t* at = feet;
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t value = vmulq_f32(vld1q_f32(x + i), factor);
    const uint32x4_t bits = vreinterpretq_u32_f32(value);
    const uint32x4_t zero = vcleq_f32(vabsq_f32(value), vdupq_n_f32(0.5F));
    const uint32x4_t half_place = vdupq_n_u32(1U << (kFootShift - 1));
    const uint32x4_t magnitude = vshrq_n_u32(vaddq_u32(magnitude4(bits), half_place), kFootShift);
    const uint32x4_t there = vcgeq_u32(magnitude, vdupq_n_u32(kLastFoot));
    const uint32x4_t place = vsubq_u32(vdupq_n_u32(1 + 2 * kFirstFoot), vshlq_n_u32(magnitude, 1));
    const uint32x4_t symbols = vandq_u32(there, vaddq_u32(place, vshrq_n_u32(bits, 31)));
    std::uint32_t symbol_of[4];
    std::uint32_t is_zero[4];
    vst1q_u32(symbol_of, symbols);
    vst1q_u32(is_zero, zero);
    for (int k = 0; k < 4; ++k) {
      *at = static_cast<std::uint8_t>(symbol_of[k]);
      at += is_zero[k] & 1U;
    }
  }
  at += kEcsqScalar.to_feet(x + i, n - i, inverse, at);
  return static_cast<std::size_t>(at - feet);
}

std::size_t add_feet(const std::uint8_t* codes, const std::uint8_t* feet, std::size_t n, float scale, float* out) {
  return kEcsqScalar.add_feet(codes, feet, n, scale, out);
}

}  // namespace

const EcsqKernels kEcsqNeon = {
    .to_codes = to_codes,
    .count = count,
    .from_codes = from_codes,
    .to_feet = to_feet,
    .add_feet = add_feet,
};

}  // namespace gradwire
