// `quantize`, 16 values (bytes) or 32 (nibbles) at a time.
#include "kernels/quantize.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

void to_bytes(const float* x, std::size_t n, float inverse, std::uint8_t* codes) {
  const float32x4_t factor = vdupq_n_f32(inverse);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) vst1q_u8(codes + i, vreinterpretq_u8_s8(rounded16(x + i, factor)));
  kQuantizeScalar.to_codes(x + i, n - i, 8, inverse, codes + i);
}

void to_nibbles(const float* x, std::size_t n, float inverse, std::uint8_t* codes) {
  const float32x4_t factor = vdupq_n_f32(inverse);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    vst1q_u8(codes + i / 2, join_nibbles(rounded16(x + i, factor), rounded16(x + i + 16, factor)));
  }
  kQuantizeScalar.to_codes(x + i, n - i, 4, inverse, codes + i / 2);
}

void to_codes(const float* x, std::size_t n, int bits, float inverse, std::uint8_t* codes) {
  bits == 8 ? to_bytes(x, n, inverse, codes) : to_nibbles(x, n, inverse, codes);
}

template <bool kAdd>
void from_bytes(const std::uint8_t* codes, std::size_t n, float scale, float* out) {
  const float32x4_t factor = vdupq_n_f32(scale);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) put_scaled<kAdd>(out + i, vreinterpretq_s8_u8(vld1q_u8(codes + i)), factor);
  kQuantizeScalar.from_codes(codes + i, n - i, 8, scale, out + i, kAdd);
}

template <bool kAdd>
void from_nibbles(const std::uint8_t* codes, std::size_t n, float scale, float* out) {
  const float32x4_t factor = vdupq_n_f32(scale);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const int8x16x2_t both = split_nibbles(vld1q_u8(codes + i / 2));
    put_scaled<kAdd>(out + i, both.val[0], factor);
    put_scaled<kAdd>(out + i + 16, both.val[1], factor);
  }
  kQuantizeScalar.from_codes(codes + i / 2, n - i, 4, scale, out + i, kAdd);
}

void from_codes(const std::uint8_t* codes, std::size_t n, int bits, float scale, float* out, bool add) {
  if (bits == 8) {
    add ? from_bytes<true>(codes, n, scale, out) : from_bytes<false>(codes, n, scale, out);
  } else {
    add ? from_nibbles<true>(codes, n, scale, out) : from_nibbles<false>(codes, n, scale, out);
  }
}

bool are_codes(const std::uint8_t* codes, std::size_t nbytes, int bits) {
  const uint8x16_t fault = vdupq_n_u8(0x80);
  uint8x16_t found = vdupq_n_u8(0);
  std::size_t i = 0;
  for (; i + 16 <= nbytes; i += 16) {
    const uint8x16_t bytes = vld1q_u8(codes + i);
    const uint8x16_t high = bits == 8 ? bytes : vandq_u8(bytes, vdupq_n_u8(0xF0));
    const uint8x16_t low = bits == 8 ? bytes : vshlq_n_u8(bytes, 4);
    found = vorrq_u8(found, vorrq_u8(vceqq_u8(high, fault), vceqq_u8(low, fault)));
  }
  return !any_of(found) && kQuantizeScalar.are_codes(codes + i, nbytes - i, bits);
}

}  // namespace

const QuantizeKernels kQuantizeNeon = {
    .peak_bits = peak_bits_of,
    .to_codes = to_codes,
    .from_codes = from_codes,
    .are_codes = are_codes,
};

}  // namespace gradwire
