// The definition of `fp16` and `bf16`. A NaN keeps its sign and the upper bits of its payload and becomes quiet, as
// with the conversion instructions of x86 and Arm.
#include "kernels/cast.h"

#include "kernels/bits.h"

namespace gradwire {

namespace {

std::uint16_t fp16_of(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t magnitude = bits & kMagnitudeMask;
  std::uint32_t half;
  if (magnitude > kInfinityBits) {
    half = 0x7E00U | (magnitude >> 13 & 0x3FFU);
  } else if (magnitude >= 0x47800000U) {  // 2^16 and more, infinity
    half = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // 2^-14, normal: rebias, then round on the 13 dropped bits
    half = (magnitude - 0x38000000U + 0xFFFU + (magnitude >> 13 & 1U)) >> 13;
  } else {  // subnormal: adding 2^-1 leaves exactly the 2^-24 grid, so that the addition rounds
    half = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
  }
  return static_cast<std::uint16_t>(sign | half);
}

float float_of_fp16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24F));
  if (exponent < 31) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
  return float_of(sign | kInfinityBits | mantissa << 13 | (mantissa != 0 ? 0x400000U : 0U));
}

float float_of_bf16(std::uint16_t brief) { return float_of(static_cast<std::uint32_t>(brief) << 16); }

template <std::uint16_t (*kConvert)(float)>
void to_two_bytes(const float* x, std::size_t n, std::uint8_t* out) {
  for (std::size_t i = 0; i < n; ++i) store_word(out + 2 * i, kConvert(x[i]));
}

template <float (*kConvert)(std::uint16_t)>
void from_two_bytes(const std::uint8_t* payload, std::size_t n, float* out, bool add) {
  for (std::size_t i = 0; i < n; ++i) {
    const float value = kConvert(load_word<std::uint16_t>(payload + 2 * i));
    add ? put<true>(out + i, value) : put<false>(out + i, value);
  }
}

}  // namespace

const CastKernels kCastScalar = {
    .to_fp16 = to_two_bytes<fp16_of>,
    .from_fp16 = from_two_bytes<float_of_fp16>,
    .to_bf16 = to_two_bytes<bf16_of>,
    .from_bf16 = from_two_bytes<float_of_bf16>,
};

}  // namespace gradwire
