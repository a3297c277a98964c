// `fp8`, 16 values at a time.
#include "kernels/fp8.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

struct Encoder {
  static constexpr std::size_t kStep = 16;

  float32x4_t scale;
  uint32x4_t limit;

  explicit Encoder(std::uint32_t exponent)
      : scale(vdupq_n_f32(fp8_encode_scale(exponent))), limit(vdupq_n_u32(fp8_limit(exponent))) {}

  // Returns four codes; see code_of in fp8_scalar.cc.
  uint32x4_t codes4(const float* x) const {
    const uint32x4_t bits = load_bits(x);
    const float32x4_t a = vmulq_f32(vreinterpretq_f32_u32(magnitude4(bits)), scale);
    const uint32x4_t binade = vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(kFp8ExponentMask));
    const uint32x4_t raised = vaddq_u32(vmaxq_u32(binade, vdupq_n_u32(kFp8SmallestNormal)), vdupq_n_u32(kFp8Raise));
    const uint32x4_t sum = vreinterpretq_u32_f32(vaddq_f32(a, vreinterpretq_f32_u32(raised)));
    const uint32x4_t biased = vaddq_u32(vsubq_u32(sum, raised), vshrq_n_u32(raised, 20));
    const uint32x4_t magnitude = vminq_u32(vsubq_u32(biased, vdupq_n_u32(kFp8RaisedBias)), limit);
    return vorrq_u32(magnitude, vandq_u32(vshrq_n_u32(bits, 24), vdupq_n_u32(0x80)));
  }

  void encode(const float* x, std::uint8_t* codes) const {
    const uint16x8_t low = vmovn_high_u32(vmovn_u32(codes4(x)), codes4(x + 4));
    const uint16x8_t high = vmovn_high_u32(vmovn_u32(codes4(x + 8)), codes4(x + 12));
    vst1q_u8(codes, vmovn_high_u16(vmovn_u16(low), high));
  }
};

struct Decoder {
  static constexpr std::size_t kStep = 16;

  float32x4_t scale;

  explicit Decoder(std::uint32_t exponent) : scale(vdupq_n_f32(fp8_decode_scale_of_half(exponent))) {}

  // A sign-extended, shifted code has its magnitude and its sign in place for half precision, with copies of the sign
  // between them.
  template <bool kAdd>
  void put_halves(float* out, int16x8_t codes) const {
    const int16x8_t placed = vandq_s16(vshlq_n_s16(codes, 7), vdupq_n_s16(static_cast<std::int16_t>(0xBFFF)));
    const float16x8_t halves = vreinterpretq_f16_s16(placed);
    put4<kAdd>(out, vmulq_f32(vcvt_f32_f16(vget_low_f16(halves)), scale));
    put4<kAdd>(out + 4, vmulq_f32(vcvt_high_f32_f16(halves), scale));
  }

  template <bool kAdd>
  void decode(const std::uint8_t* codes, float* out) const {
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(codes));
    put_halves<kAdd>(out, vmovl_s8(vget_low_s8(bytes)));
    put_halves<kAdd>(out + 8, vmovl_high_s8(bytes));
  }
};

}  // namespace

const Fp8Kernels kFp8Neon = {.to_codes = fp8_to_codes<Encoder>, .from_codes = fp8_from_codes<Decoder>};

}  // namespace gradwire
