// Functions shared by the NEON kernels; included only by *_neon.cc files.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"

namespace gradwire {

template <bool kAdd>
static inline void put4(float* out, float32x4_t values) {
  vst1q_f32(out, kAdd ? vaddq_f32(vld1q_f32(out), values) : values);
}

static inline uint32x4_t load_bits(const float* x) { return vreinterpretq_u32_f32(vld1q_f32(x)); }

static inline uint32x4_t magnitude4(uint32x4_t bits) { return vandq_u32(bits, vdupq_n_u32(kMagnitudeMask)); }

static inline bool any_of(uint8x16_t mask) { return vmaxvq_u8(mask) != 0; }

// Returns x * scale, rounded to nearest even and saturated to int32. NaN becomes 0.
static inline int32x4_t rounded4(const float* x, float32x4_t scale) {
  return vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x), scale));
}

// Returns the same for 16 values, saturated to signed bytes.
static inline int8x16_t rounded16(const float* x, float32x4_t scale) {
  const int16x8_t low = vqmovn_high_s32(vqmovn_s32(rounded4(x, scale)), rounded4(x + 4, scale));
  const int16x8_t high = vqmovn_high_s32(vqmovn_s32(rounded4(x + 8, scale)), rounded4(x + 12, scale));
  return vqmovn_high_s16(vqmovn_s16(low), high);
}

// Multiplies 16 codes by their scale.
template <bool kAdd>
static inline void put_scaled(float* out, int8x16_t codes, float32x4_t scale) {
  const int16x8_t low = vmovl_s8(vget_low_s8(codes));
  const int16x8_t high = vmovl_high_s8(codes);
  put4<kAdd>(out, vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), scale));
  put4<kAdd>(out + 4, vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(low)), scale));
  put4<kAdd>(out + 8, vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), scale));
  put4<kAdd>(out + 12, vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(high)), scale));
}

// Packs 32 values to signed nibbles, two per byte, the first value in the low nibble.
static inline uint8x16_t join_nibbles(int8x16_t first, int8x16_t second) {
  const int8x16_t even = vuzp1q_s8(first, second);
  const int8x16_t odd = vuzp2q_s8(first, second);
  return vsliq_n_u8(vreinterpretq_u8_s8(even), vreinterpretq_u8_s8(odd), 4);
}

static inline int8x16x2_t split_nibbles(uint8x16_t bytes) {
  const int8x16_t codes = vreinterpretq_s8_u8(bytes);
  const int8x16_t even = vshrq_n_s8(vshlq_n_s8(codes, 4), 4);
  return vzipq_s8(even, vshrq_n_s8(codes, 4));
}

}  // namespace gradwire
