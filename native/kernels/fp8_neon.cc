// `fp8`, 16 values at a time.
#include "kernels/fp8.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

// Four codes; see code_of in fp8_scalar.cc.
uint32x4_t codes4(const float* x, float32x4_t scale, uint32x4_t limit) {
  const uint32x4_t bits = load_bits(x);
  const float32x4_t a = vmulq_f32(vreinterpretq_f32_u32(magnitude4(bits)), scale);
  const uint32x4_t binade = vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(kFp8ExponentMask));
  const uint32x4_t raised = vaddq_u32(vmaxq_u32(binade, vdupq_n_u32(kFp8SmallestNormal)), vdupq_n_u32(kFp8Raise));
  const uint32x4_t sum = vreinterpretq_u32_f32(vaddq_f32(a, vreinterpretq_f32_u32(raised)));
  const uint32x4_t biased = vaddq_u32(vsubq_u32(sum, raised), vshrq_n_u32(raised, 20));
  const uint32x4_t magnitude = vminq_u32(vsubq_u32(biased, vdupq_n_u32(kFp8RaisedBias)), limit);
  return vorrq_u32(magnitude, vandq_u32(vshrq_n_u32(bits, 24), vdupq_n_u32(0x80)));
}

void to_codes(const float* x, std::size_t n, std::uint32_t exponent, std::uint8_t* codes) {
  const float32x4_t scale = vdupq_n_f32(fp8_encode_scale(exponent));
  const uint32x4_t limit = vdupq_n_u32(fp8_limit(exponent));
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const auto four = [&](std::size_t k) { return codes4(x + i + 4 * k, scale, limit); };
    const uint16x8_t low = vmovn_high_u32(vmovn_u32(four(0)), four(1));
    const uint16x8_t high = vmovn_high_u32(vmovn_u32(four(2)), four(3));
    vst1q_u8(codes + i, vmovn_high_u16(vmovn_u16(low), high));
  }
  kFp8Scalar.to_codes(x + i, n - i, exponent, codes + i);
}

// Extended by its sign and shifted, a code has its magnitude and its sign in place as a half, and the sign once more
// between.
template <bool kAdd>
void put_halves(float* out, int16x8_t codes, float32x4_t scale) {
  const int16x8_t placed = vandq_s16(vshlq_n_s16(codes, 7), vdupq_n_s16(static_cast<std::int16_t>(0xBFFF)));
  const float16x8_t halves = vreinterpretq_f16_s16(placed);
  put4<kAdd>(out, vmulq_f32(vcvt_f32_f16(vget_low_f16(halves)), scale));
  put4<kAdd>(out + 4, vmulq_f32(vcvt_high_f32_f16(halves), scale));
}

template <bool kAdd>
void from_codes_as(const std::uint8_t* codes, std::size_t n, std::uint32_t exponent, float* out) {
  std::size_t i = 0;
  if (exponent <= kFp8LargestViaHalf) {
    const float32x4_t scale = vdupq_n_f32(fp8_decode_scale_of_half(exponent));
    for (; i + 16 <= n; i += 16) {
      const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(codes + i));
      put_halves<kAdd>(out + i, vmovl_s8(vget_low_s8(bytes)), scale);
      put_halves<kAdd>(out + i + 8, vmovl_high_s8(bytes), scale);
    }
  }
  kFp8Scalar.from_codes(codes + i, n - i, exponent, out + i, kAdd);
}

void from_codes(const std::uint8_t* codes, std::size_t n, std::uint32_t exponent, float* out, bool add) {
  add ? from_codes_as<true>(codes, n, exponent, out) : from_codes_as<false>(codes, n, exponent, out);
}

}  // namespace

const Fp8Kernels kFp8Neon = {.to_codes = to_codes, .from_codes = from_codes};

}  // namespace gradwire
