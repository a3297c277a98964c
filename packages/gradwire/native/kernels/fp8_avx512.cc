// `fp8`, 16 values at a time.
#include "kernels/fp8.h"

#include "kernels/avx512.h"

namespace gradwire {

namespace {

__m512i words_of(std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }

struct Encoder {
  static constexpr std::size_t kStep = 16;

  __m512 scale;
  __m128i limit;

  explicit Encoder(std::uint32_t exponent)
      : scale(_mm512_set1_ps(fp8_encode_scale(exponent))),
        limit(_mm_set1_epi8(static_cast<char>(fp8_limit(exponent)))) {}

  // See code_of in fp8_scalar.cc. The narrowing keeps the low bytes, from which the bias is subtracted.
  void encode(const float* x, std::uint8_t* codes) const {
    const __m512i bits = load16_bits(x);
    const __m512 a = _mm512_mul_ps(_mm512_castsi512_ps(magnitude16(bits)), scale);
    const __m512i binade = _mm512_and_si512(_mm512_castps_si512(a), words_of(kFp8ExponentMask));
    const __m512i raised =
        _mm512_add_epi32(_mm512_max_epu32(binade, words_of(kFp8SmallestNormal)), words_of(kFp8Raise));
    const __m512i sum = _mm512_castps_si512(_mm512_add_ps(a, _mm512_castsi512_ps(raised)));
    const __m512i biased = _mm512_add_epi32(_mm512_sub_epi32(sum, raised), _mm512_srli_epi32(raised, 20));
    const __m128i bias = _mm_set1_epi8(static_cast<char>(kFp8RaisedBias & 0xFF));
    const __m128i magnitude = _mm_min_epu8(_mm_sub_epi8(_mm512_cvtepi32_epi8(biased), bias), limit);
    const __m128i signs = _mm_set1_epi8(-128);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes),
                     _mm_mask_add_epi8(magnitude, _mm512_movepi32_mask(bits), magnitude, signs));
  }
};

struct Decoder {
  static constexpr std::size_t kStep = 16;

  __m512 scale;

  explicit Decoder(std::uint32_t exponent) : scale(_mm512_set1_ps(fp8_decode_scale_of_half(exponent))) {}

  // A sign-extended, shifted code has its magnitude and its sign in place, with copies of the sign between them.
  template <bool kAdd>
  void decode(const std::uint8_t* codes, float* out) const {
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i twice = _mm256_slli_epi16(words, 7);
    const __m256i halves = _mm256_and_si256(twice, _mm256_set1_epi16(static_cast<short>(0xBFFF)));
    put16<kAdd>(out, _mm512_mul_ps(_mm512_cvtph_ps(halves), scale));
  }
};

}  // namespace

const Fp8Kernels kFp8Avx512 = {.to_codes = fp8_to_codes<Encoder>, .from_codes = fp8_from_codes<Decoder>};

}  // namespace gradwire
