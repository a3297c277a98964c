// `fp8`, 16 values at a time when encoded, 8 when decoded.
#include "kernels/fp8.h"

#include "kernels/avx2.h"

namespace gradwire {

namespace {

__m256i words_of(std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }

// 8 magnitudes, kFp8RaisedBias too large; see code_of in fp8_scalar.cc.
__m256i biased_of(__m256i bits, __m256 scale) {
  const __m256 a = _mm256_mul_ps(_mm256_castsi256_ps(magnitude8(bits)), scale);
  const __m256i binade = _mm256_and_si256(_mm256_castps_si256(a), words_of(kFp8ExponentMask));
  const __m256i raised =
      _mm256_add_epi32(_mm256_max_epu32(binade, words_of(kFp8SmallestNormal)), words_of(kFp8Raise));
  const __m256i sum = _mm256_castps_si256(_mm256_add_ps(a, _mm256_castsi256_ps(raised)));
  return _mm256_add_epi32(_mm256_sub_epi32(sum, raised), _mm256_srli_epi32(raised, 20));
}

// The floats themselves are narrowed beside their magnitudes: saturation keeps their signs. The packs work within
// 128-bit lanes; the permutation leaves the magnitudes in the lower lane, in order, and the signs in the upper one.
__m128i codes_of(const float* x, __m256 scale, __m128i limit) {
  const __m256i low = load_vector(x);
  const __m256i high = load_vector(x + 8);
  const __m256i biased = _mm256_packs_epi32(biased_of(low, scale), biased_of(high, scale));
  const __m256i magnitudes = _mm256_sub_epi16(biased, _mm256_set1_epi16(static_cast<short>(kFp8RaisedBias)));
  const __m256i bytes = _mm256_packs_epi16(magnitudes, _mm256_packs_epi32(low, high));
  const __m256i sorted = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  const __m128i signs = _mm_and_si128(_mm256_extracti128_si256(sorted, 1), _mm_set1_epi8(-128));
  return _mm_or_si128(_mm_min_epu8(_mm256_castsi256_si128(sorted), limit), signs);
}

void to_codes(const float* x, std::size_t n, std::uint32_t exponent, std::uint8_t* codes) {
  const __m256 scale = _mm256_set1_ps(fp8_encode_scale(exponent));
  const __m128i limit = _mm_set1_epi8(static_cast<char>(fp8_limit(exponent)));
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) store_half(codes + i, codes_of(x + i, scale, limit));
  kFp8Scalar.to_codes(x + i, n - i, exponent, codes + i);
}

// Extended by its sign and shifted, a code has its magnitude and its sign in place, and the sign once more between.
__m256 values_of(const std::uint8_t* codes) {
  const __m128i twice = _mm_slli_epi16(_mm_cvtepi8_epi16(load_quarter(codes)), 7);
  return _mm256_cvtph_ps(_mm_and_si128(twice, _mm_set1_epi16(static_cast<short>(0xBFFF))));
}

template <bool kAdd>
void from_codes_as(const std::uint8_t* codes, std::size_t n, std::uint32_t exponent, float* out) {
  std::size_t i = 0;
  if (exponent <= kFp8LargestViaHalf) {
    const __m256 scale = _mm256_set1_ps(fp8_decode_scale_of_half(exponent));
    for (; i + 8 <= n; i += 8) put8<kAdd>(out + i, _mm256_mul_ps(values_of(codes + i), scale));
  }
  kFp8Scalar.from_codes(codes + i, n - i, exponent, out + i, kAdd);
}

void from_codes(const std::uint8_t* codes, std::size_t n, std::uint32_t exponent, float* out, bool add) {
  add ? from_codes_as<true>(codes, n, exponent, out) : from_codes_as<false>(codes, n, exponent, out);
}

}  // namespace

const Fp8Kernels kFp8Avx2 = {.to_codes = to_codes, .from_codes = from_codes};

}  // namespace gradwire
