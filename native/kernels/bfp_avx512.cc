// `bfp` with 7 mantissa bits, whose mantissas are whole bytes, in blocks of whole vectors; others take the portable kernel.
#include "kernels/bfp.h"

#include "kernels/avx512.h"

namespace gradwire {

namespace {

constexpr int kMantissaBits = 7;

bool is_vectored(int mantissa_bits, std::size_t block) { return mantissa_bits == kMantissaBits && block % 16 == 0; }

inline void encode_block(const float* x, std::size_t block, std::uint8_t* out) {
  __m512i peak = magnitude16(load16_bits(x));
  for (std::size_t i = 16; i < block; i += 16) peak = _mm512_max_epu32(peak, magnitude16(load16_bits(x + i)));
  const std::uint32_t exponent = bfp_exponent(_mm512_reduce_max_epu32(peak));
  const float scale = bfp_encode_scale(exponent, kMantissaBits);
  // Where the scale is 0 no lane is converted, since infinity * 0 is NaN.
  const __mmask16 lanes = scale == 0.0F ? __mmask16{0} : __mmask16{0xFFFF};
  *out++ = static_cast<std::uint8_t>(exponent);
  for (std::size_t i = 0; i < block; i += 16) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(scale));
    const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(lanes, scaled));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm_max_epi8(bytes, _mm_set1_epi8(-127)));
  }
}

void encode(const float* x, std::size_t n, int mantissa_bits, std::size_t block, std::uint8_t* out) {
  std::size_t at = 0;
  if (is_vectored(mantissa_bits, block)) {
    if (block == 16) {  // the paper's: without inner loops
      for (; at + 16 <= n; at += 16, out += 17) {
        prefetch(x + at, 2048);
        encode_block(x + at, 16, out);
      }
    } else {
      for (; at + block <= n; at += block, out += block + 1) encode_block(x + at, block, out);
    }
  }
  kBfpScalar.encode(x + at, n - at, mantissa_bits, block, out);
}

template <bool kAdd>
inline void decode_block(const std::uint8_t* payload, std::size_t block, float* out) {
  const __m512 scale = _mm512_set1_ps(kBfpByteScales.of[*payload++]);
  for (std::size_t i = 0; i < block; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(payload + i));
    put16<kAdd>(out + i, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale));
  }
}

template <bool kAdd>
void decode_as(const std::uint8_t* payload, std::size_t n, int mantissa_bits, std::size_t block, float* out) {
  std::size_t at = 0;
  if (is_vectored(mantissa_bits, block)) {
    if (block == 16) {
      for (; at + 16 <= n; at += 16, payload += 17) decode_block<kAdd>(payload, 16, out + at);
    } else {
      for (; at + block <= n; at += block, payload += block + 1) decode_block<kAdd>(payload, block, out + at);
    }
  }
  kBfpScalar.decode(payload, n - at, mantissa_bits, block, out + at, kAdd);
}

void decode(const std::uint8_t* payload, std::size_t n, int mantissa_bits, std::size_t block, float* out, bool add) {
  add ? decode_as<true>(payload, n, mantissa_bits, block, out)
      : decode_as<false>(payload, n, mantissa_bits, block, out);
}

}  // namespace

const BfpKernels kBfpAvx512 = {.encode = encode, .decode = decode};

}  // namespace gradwire
