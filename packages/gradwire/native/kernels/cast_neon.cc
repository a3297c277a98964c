// `fp16` by the conversion instructions, `bf16` by integer arithmetic.
#include "kernels/cast.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

uint16x8_t fp16_of(const float* x) {
  return vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(vld1q_f32(x)), vld1q_f32(x + 4)));
}

// Rounds to bfloat16: adds half a unit of the kept bits, minus one if they are even, and truncates. A NaN is truncated
// and made quiet.
uint32x4_t raised_bf16(const float* x) {
  const uint32x4_t bits = load_bits(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t raised = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
  const uint32x4_t nan = vcgtq_u32(magnitude4(bits), vdupq_n_u32(kInfinityBits));
  return vbslq_u32(nan, vorrq_u32(bits, vdupq_n_u32(0x400000)), raised);
}

uint16x8_t bf16_of(const float* x) {
  return vshrn_high_n_u32(vshrn_n_u32(raised_bf16(x), 16), raised_bf16(x + 4), 16);
}

float32x4_t floats_of_fp16(uint16x4_t halves) { return vcvt_f32_f16(vreinterpret_f16_u16(halves)); }

float32x4_t floats_of_bf16(uint16x4_t words) { return vreinterpretq_f32_u32(vshll_n_u16(words, 16)); }

template <uint16x8_t (*kTo)(const float*), float32x4_t (*kFrom)(uint16x4_t)>
struct Cast {
  static constexpr std::size_t kEncoded = 8;
  static constexpr std::size_t kDecoded = 8;

  static void encode(const float* x, std::uint8_t* out) {
    vst1q_u8(out, vreinterpretq_u8_u16(kTo(x)));
  }

  template <bool kAdd>
  static void decode(const std::uint8_t* payload, float* out) {
    const uint16x8_t words = vreinterpretq_u16_u8(vld1q_u8(payload));
    put4<kAdd>(out, kFrom(vget_low_u16(words)));
    put4<kAdd>(out + 4, kFrom(vget_high_u16(words)));
  }
};

}  // namespace

const CastKernels kCastNeon = kCastKernelsOf<Cast<fp16_of, floats_of_fp16>, Cast<bf16_of, floats_of_bf16>>;

}  // namespace gradwire
