// `fp8`, 16 values at a time.
#include "kernels/fp8.h"

#include "kernels/avx512.h"

namespace gradwire {

namespace {

__m512i words_of(std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }

// See code_of in fp8_scalar.cc. The narrowing keeps low bytes, from which the bias is taken.
__m128i codes_of(const float* x, __m512 scale, __m128i limit) {
  const __m512i bits = load16_bits(x);
  const __m512 a = _mm512_mul_ps(_mm512_castsi512_ps(magnitude16(bits)), scale);
  const __m512i binade = _mm512_and_si512(_mm512_castps_si512(a), words_of(kFp8ExponentMask));
  const __m512i raised =
      _mm512_add_epi32(_mm512_max_epu32(binade, words_of(kFp8SmallestNormal)), words_of(kFp8Raise));
  const __m512i sum = _mm512_castps_si512(_mm512_add_ps(a, _mm512_castsi512_ps(raised)));
  const __m512i biased = _mm512_add_epi32(_mm512_sub_epi32(sum, raised), _mm512_srli_epi32(raised, 20));
  const __m128i bias = _mm_set1_epi8(static_cast<char>(kFp8RaisedBias & 0xFF));
  const __m128i magnitude = _mm_min_epu8(_mm_sub_epi8(_mm512_cvtepi32_epi8(biased), bias), limit);
  return _mm_mask_add_epi8(magnitude, _mm512_movepi32_mask(bits), magnitude, _mm_set1_epi8(-128));
}

void to_codes(const float* x, std::size_t n, std::uint32_t exponent, std::uint8_t* codes) {
  const __m512 scale = _mm512_set1_ps(fp8_encode_scale(exponent));
  const __m128i limit = _mm_set1_epi8(static_cast<char>(fp8_limit(exponent)));
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), codes_of(x + i, scale, limit));
  }
  kFp8Scalar.to_codes(x + i, n - i, exponent, codes + i);
}

// Extended by its sign and shifted, a code has its magnitude and its sign in place, and the sign once more between.
__m512 values_of(const std::uint8_t* codes) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m256i twice = _mm256_slli_epi16(words, 7);
  return _mm512_cvtph_ps(_mm256_and_si256(twice, _mm256_set1_epi16(static_cast<short>(0xBFFF))));
}

template <bool kAdd>
void from_codes_as(const std::uint8_t* codes, std::size_t n, std::uint32_t exponent, float* out) {
  std::size_t i = 0;
  if (exponent <= kFp8LargestViaHalf) {
    const __m512 scale = _mm512_set1_ps(fp8_decode_scale_of_half(exponent));
    for (; i + 16 <= n; i += 16) put16<kAdd>(out + i, _mm512_mul_ps(values_of(codes + i), scale));
  }
  kFp8Scalar.from_codes(codes + i, n - i, exponent, out + i, kAdd);
}

void from_codes(const std::uint8_t* codes, std::size_t n, std::uint32_t exponent, float* out, bool add) {
  add ? from_codes_as<true>(codes, n, exponent, out) : from_codes_as<false>(codes, n, exponent, out);
}

}  // namespace

const Fp8Kernels kFp8Avx512 = {.to_codes = to_codes, .from_codes = from_codes};

}  // namespace gradwire
