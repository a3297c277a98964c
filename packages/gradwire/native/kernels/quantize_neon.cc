// `quantize`, 16 values (bytes) or 32 (nibbles) at a time.
#include "kernels/quantize.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

struct Codes {
  float32x4_t factor;

  explicit Codes(float by) : factor(vdupq_n_f32(by)) {}
};

struct Bytes : Codes {
  using Codes::Codes;
  static constexpr int kBits = 8;
  static constexpr std::size_t kEncoded = 16;
  static constexpr std::size_t kDecoded = 16;

  void encode(const float* x, std::uint8_t* codes) const { vst1q_u8(codes, vreinterpretq_u8_s8(rounded16(x, factor))); }

  template <bool kAdd>
  void decode(const std::uint8_t* codes, float* out) const {
    put_scaled<kAdd>(out, vreinterpretq_s8_u8(vld1q_u8(codes)), factor);
  }
};

struct Nibbles : Codes {
  using Codes::Codes;
  static constexpr int kBits = 4;
  static constexpr std::size_t kEncoded = 32;
  static constexpr std::size_t kDecoded = 32;

  void encode(const float* x, std::uint8_t* codes) const {
    vst1q_u8(codes, join_nibbles(rounded16(x, factor), rounded16(x + 16, factor)));
  }

  template <bool kAdd>
  void decode(const std::uint8_t* codes, float* out) const {
    const int8x16x2_t both = split_nibbles(vld1q_u8(codes));
    put_scaled<kAdd>(out, both.val[0], factor);
    put_scaled<kAdd>(out + 16, both.val[1], factor);
  }
};

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
    .to_codes = quantize_to<Bytes, Nibbles>,
    .from_codes = quantize_from<Bytes, Nibbles>,
    .are_codes = are_codes,
};

}  // namespace gradwire
