// `bfp` with 7 mantissa bits, whose mantissas are whole bytes, in blocks of 16 k; others take the portable kernel.
#include "kernels/bfp.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

constexpr int kMantissaBits = 7;

bool is_vectored(int mantissa_bits, std::size_t block) { return mantissa_bits == kMantissaBits && block % 16 == 0; }

inline void encode_block(const float* x, std::size_t block, std::uint8_t* out) {
  uint32x4_t peak = vdupq_n_u32(0);
  for (std::size_t i = 0; i < block; i += 4) peak = vmaxq_u32(peak, magnitude4(load_bits(x + i)));
  const std::uint32_t exponent = bfp_exponent(vmaxvq_u32(peak));
  const float scale = bfp_encode_scale(exponent, kMantissaBits);
  // Where the scale is 0 the mantissas are masked off: that many targets agree on infinity * 0 needs no proof then.
  const int8x16_t kept = vdupq_n_s8(scale == 0.0F ? 0 : -1);
  *out++ = static_cast<std::uint8_t>(exponent);
  for (std::size_t i = 0; i < block; i += 16) {
    const int8x16_t mantissas = vmaxq_s8(rounded16(x + i, vdupq_n_f32(scale)), vdupq_n_s8(-127));
    vst1q_u8(out + i, vreinterpretq_u8_s8(vandq_s8(kept, mantissas)));
  }
}

void encode(const float* x, std::size_t n, int mantissa_bits, std::size_t block, std::uint8_t* out) {
  std::size_t at = 0;
  if (is_vectored(mantissa_bits, block)) {
    for (; at + block <= n; at += block, out += block + 1) encode_block(x + at, block, out);
  }
  kBfpScalar.encode(x + at, n - at, mantissa_bits, block, out);
}

template <bool kAdd>
void decode_as(const std::uint8_t* payload, std::size_t n, int mantissa_bits, std::size_t block, float* out) {
  std::size_t at = 0;
  if (is_vectored(mantissa_bits, block)) {
    for (; at + block <= n; at += block, payload += block + 1) {
      const float32x4_t scale = vdupq_n_f32(kBfpByteScales.of[*payload]);
      for (std::size_t i = 0; i < block; i += 16) {
        put_scaled<kAdd>(out + at + i, vreinterpretq_s8_u8(vld1q_u8(payload + 1 + i)), scale);
      }
    }
  }
  kBfpScalar.decode(payload, n - at, mantissa_bits, block, out + at, kAdd);
}

void decode(const std::uint8_t* payload, std::size_t n, int mantissa_bits, std::size_t block, float* out, bool add) {
  add ? decode_as<true>(payload, n, mantissa_bits, block, out)
      : decode_as<false>(payload, n, mantissa_bits, block, out);
}

}  // namespace

const BfpKernels kBfpNeon = {.encode = encode, .decode = decode};

}  // namespace gradwire
