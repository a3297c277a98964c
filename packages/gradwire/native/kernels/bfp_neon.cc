// `bfp` with 7 mantissa bits, whose mantissas are whole bytes, in blocks of 16 k values; other blocks use the
// portable kernel.
#include "kernels/bfp.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

struct Blocks {
  static constexpr std::size_t k16Blocks = 1;

  static void encode(const float* x, std::size_t block, std::uint8_t* out) {
    uint32x4_t peak = vdupq_n_u32(0);
    for (std::size_t i = 0; i < block; i += 4) peak = vmaxq_u32(peak, magnitude4(load_bits(x + i)));
    const std::uint32_t exponent = bfp_exponent(vmaxvq_u32(peak));
    const float scale = bfp_encode_scale(exponent, kBfpByteMantissa);
    // A scale of 0 masks off the mantissas, because infinity * 0 is NaN.
    const int8x16_t kept = vdupq_n_s8(scale == 0.0F ? 0 : -1);
    *out++ = static_cast<std::uint8_t>(exponent);
    for (std::size_t i = 0; i < block; i += 16) {
      const int8x16_t mantissas = vmaxq_s8(rounded16(x + i, vdupq_n_f32(scale)), vdupq_n_s8(-127));
      vst1q_u8(out + i, vreinterpretq_u8_s8(vandq_s8(kept, mantissas)));
    }
  }

  static void encode_16(const float* x, std::uint8_t* out) { encode(x, 16, out); }

  template <bool kAdd>
  static void decode(const std::uint8_t* payload, std::size_t block, float* out) {
    const float32x4_t scale = vdupq_n_f32(kBfpByteScales.of[*payload++]);
    for (std::size_t i = 0; i < block; i += 16) {
      put_scaled<kAdd>(out + i, vreinterpretq_s8_u8(vld1q_u8(payload + i)), scale);
    }
  }
};

}  // namespace

const BfpKernels kBfpNeon = {.encode = bfp_encode<Blocks>, .decode = bfp_decode<Blocks>};

}  // namespace gradwire
