// `fp8`, encoding 16 and decoding 8 values at a time.
#include "kernels/fp8.h"

#include "kernels/avx2.h"

namespace gradwire {

namespace {

__m256i words_of(std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }

// Returns 8 magnitudes, increased by kFp8RaisedBias; see code_of in fp8_scalar.cc.
__m256i biased_of(__m256i bits, __m256 scale) {
  const __m256 a = _mm256_mul_ps(_mm256_castsi256_ps(magnitude8(bits)), scale);
  const __m256i binade = _mm256_and_si256(_mm256_castps_si256(a), words_of(kFp8ExponentMask));
  const __m256i raised =
      _mm256_add_epi32(_mm256_max_epu32(binade, words_of(kFp8SmallestNormal)), words_of(kFp8Raise));
  const __m256i sum = _mm256_castps_si256(_mm256_add_ps(a, _mm256_castsi256_ps(raised)));
  return _mm256_add_epi32(_mm256_sub_epi32(sum, raised), _mm256_srli_epi32(raised, 20));
}

struct Encoder {
  static constexpr std::size_t kStep = 16;

  __m256 scale;
  __m128i limit;

  explicit Encoder(std::uint32_t exponent)
      : scale(_mm256_set1_ps(fp8_encode_scale(exponent))),
        limit(_mm_set1_epi8(static_cast<char>(fp8_limit(exponent)))) {}

  // The floats are narrowed together with their magnitudes, and saturation keeps their signs. The packs work within
  // 128-bit lanes. The permutation puts the magnitudes in the lower lane, in order, and the signs in the upper one.
  void encode(const float* x, std::uint8_t* codes) const {
    const __m256i low = load_vector(x);
    const __m256i high = load_vector(x + 8);
    const __m256i biased = _mm256_packs_epi32(biased_of(low, scale), biased_of(high, scale));
    const __m256i magnitudes = _mm256_sub_epi16(biased, _mm256_set1_epi16(static_cast<short>(kFp8RaisedBias)));
    const __m256i bytes = _mm256_packs_epi16(magnitudes, _mm256_packs_epi32(low, high));
    const __m256i sorted = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m128i signs = _mm_and_si128(_mm256_extracti128_si256(sorted, 1), _mm_set1_epi8(-128));
    store_half(codes, _mm_or_si128(_mm_min_epu8(_mm256_castsi256_si128(sorted), limit), signs));
  }
};

struct Decoder {
  static constexpr std::size_t kStep = 8;

  __m256 scale;

  explicit Decoder(std::uint32_t exponent) : scale(_mm256_set1_ps(fp8_decode_scale_of_half(exponent))) {}

  // A sign-extended, shifted code has its magnitude and its sign in place, with copies of the sign between them.
  template <bool kAdd>
  void decode(const std::uint8_t* codes, float* out) const {
    const __m128i twice = _mm_slli_epi16(_mm_cvtepi8_epi16(load_quarter(codes)), 7);
    const __m128i halves = _mm_and_si128(twice, _mm_set1_epi16(static_cast<short>(0xBFFF)));
    put8<kAdd>(out, _mm256_mul_ps(_mm256_cvtph_ps(halves), scale));
  }
};

}  // namespace

const Fp8Kernels kFp8Avx2 = {.to_codes = fp8_to_codes<Encoder>, .from_codes = fp8_from_codes<Decoder>};

}  // namespace gradwire
