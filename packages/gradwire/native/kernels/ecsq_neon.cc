// The codes of `ecsq`, for 32 values at a time, and its feet, for 4 at a time. Escapes are rare, so 32 values with an
// escape use the portable kernel.
#include "kernels/ecsq.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

uint8x16_t is_far(int8x16_t codes) {
  return vcgtq_s8(vqabsq_s8(codes), vdupq_n_s8(kFirstEscape - 1));  // saturated, so that -128 counts as an escape, too
}

struct Codes {
  static constexpr std::size_t kEncoded = 32;
  static constexpr std::size_t kDecoded = 32;
  static constexpr std::size_t kCounted = 16;
  static constexpr std::size_t kWithFeet = 4;

  float each;
  float32x4_t factor;

  explicit Codes(float by) : each(by), factor(vdupq_n_f32(by)) {}

  void to_codes(const float* x, std::uint8_t* codes, std::uint16_t*& escapes) const {
    const int8x16_t first = rounded16(x, factor);
    const int8x16_t second = rounded16(x + 16, factor);
    if (any_of(vorrq_u8(is_far(first), is_far(second)))) {
      escapes += kEcsqScalar.to_codes(x, kEncoded, each, codes, escapes);
    } else {
      vst1q_u8(codes, join_nibbles(first, second));
    }
  }

  static std::size_t count(const std::uint8_t* codes, std::uint8_t nibble) {
    const uint8x16_t wanted = vdupq_n_u8(nibble);
    const uint8x16_t bytes = vld1q_u8(codes);
    const uint8x16_t low = vceqq_u8(vandq_u8(bytes, vdupq_n_u8(0x0F)), wanted);
    const uint8x16_t high = vceqq_u8(vshrq_n_u8(bytes, 4), wanted);
    return vaddvq_u8(vaddq_u8(vshrq_n_u8(low, 7), vshrq_n_u8(high, 7)));
  }

  template <bool kAdd>
  void from_codes(const std::uint8_t* codes, const std::uint16_t*& escapes, float* out) const {
    const int8x16_t escape = vdupq_n_s8(-8);
    const int8x16x2_t both = split_nibbles(vld1q_u8(codes));
    if (any_of(vorrq_u8(vceqq_s8(both.val[0], escape), vceqq_s8(both.val[1], escape)))) {
      escapes += kEcsqScalar.from_codes(codes, escapes, kDecoded, each, out, kAdd);
    } else {
      put_scaled<kAdd>(out, both.val[0], factor);
      put_scaled<kAdd>(out + 16, both.val[1], factor);
    }
  }

  // Symbols are computed for all values. Each is stored, and overwritten by the next one unless its q is 0.
  void to_feet(const float* x, std::uint8_t*& feet) const {
    const float32x4_t value = vmulq_f32(vld1q_f32(x), factor);
    const uint32x4_t bits = vreinterpretq_u32_f32(value);
    const uint32x4_t zero = vcleq_f32(vabsq_f32(value), vdupq_n_f32(0.5F));
    const uint32x4_t half_place = vdupq_n_u32(1U << (kFootShift - 1));
    const uint32x4_t magnitude = vshrq_n_u32(vaddq_u32(magnitude4(bits), half_place), kFootShift);
    const uint32x4_t there = vcgeq_u32(magnitude, vdupq_n_u32(kLastFoot));
    const uint32x4_t place = vsubq_u32(vdupq_n_u32(1 + 2 * kFirstFoot), vshlq_n_u32(magnitude, 1));
    const uint32x4_t symbols = vandq_u32(there, vaddq_u32(place, vshrq_n_u32(bits, 31)));
    std::uint32_t symbol_of[kWithFeet];
    std::uint32_t is_zero[kWithFeet];
    vst1q_u32(symbol_of, symbols);
    vst1q_u32(is_zero, zero);
    for (std::size_t k = 0; k < kWithFeet; ++k) {
      *feet = static_cast<std::uint8_t>(symbol_of[k]);
      feet += is_zero[k] & 1U;
    }
  }
};

}  // namespace

const EcsqKernels kEcsqNeon = {
    .to_codes = ecsq_to_codes<Codes>,
    .count = ecsq_count_by<Codes>,
    .from_codes = ecsq_from_codes<Codes>,
    .to_feet = ecsq_to_feet<Codes>,
    .add_feet = ecsq_add_feet,
};

}  // namespace gradwire
