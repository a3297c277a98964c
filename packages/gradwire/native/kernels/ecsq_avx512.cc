// The codes of `ecsq`, for 32 values at a time, with AVX-512 F, BW, DQ, and VL.
#include "kernels/avx512.h"
#include "kernels/ecsq.h"

namespace gradwire {

namespace {

__m512i steps_of(const float* x, __m512 inverse) {
  return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inverse));
}

__mmask16 far_from_zero(__m512i q) {
  constexpr int kLast = kFirstEscape - 1;
  return _mm512_cmpgt_epu32_mask(_mm512_add_epi32(q, _mm512_set1_epi32(kLast)), _mm512_set1_epi32(2 * kLast));
}

std::uint16_t* store_escapes(__m512i q, __mmask16 which, std::uint16_t* at) {
  const __m512i beyond = _mm512_sub_epi32(_mm512_abs_epi32(q), _mm512_set1_epi32(kFirstEscape));
  const __m512i words = _mm512_or_epi32(_mm512_slli_epi32(beyond, 1), _mm512_srli_epi32(q, 31));
  const __m512i chosen = _mm512_maskz_compress_epi32(which, words);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(chosen));
  return at + _mm_popcnt_u32(which);
}

__m512i load_escapes(__mmask16 which, const std::uint16_t*& from) {
  const __m512i next = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  from += _mm_popcnt_u32(which);
  const __m512i words = _mm512_maskz_expand_epi32(which, next);
  const __m512i magnitude = _mm512_add_epi32(_mm512_srli_epi32(words, 1), _mm512_set1_epi32(kFirstEscape));
  const __mmask16 negative = _mm512_test_epi32_mask(words, _mm512_set1_epi32(1));
  return _mm512_mask_sub_epi32(magnitude, negative, _mm512_setzero_si512(), magnitude);
}

__m512 values_of_feet(__mmask16 which, const std::uint8_t*& from, __m512 scale) {
  const __m512i next = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  from += _mm_popcnt_u32(which);
  const __m512i symbols = _mm512_maskz_expand_epi32(which, next);
  const __mmask16 there = _mm512_test_epi32_mask(symbols, symbols);
  const __m512i place = _mm512_sub_epi32(symbols, _mm512_set1_epi32(1));
  const __m512i magnitude = _mm512_sub_epi32(_mm512_set1_epi32(kFirstFoot), _mm512_srli_epi32(place, 1));
  const __m512i bits = _mm512_or_epi32(_mm512_slli_epi32(magnitude, kFootShift), _mm512_slli_epi32(place, 31));
  return _mm512_maskz_mul_ps(there, _mm512_castsi512_ps(bits), scale);
}

struct Codes {
  static constexpr std::size_t kEncoded = 32;
  static constexpr std::size_t kDecoded = 32;
  static constexpr std::size_t kCounted = 64;
  static constexpr std::size_t kWithFeet = 16;

  __m512 factor;

  explicit Codes(float by) : factor(_mm512_set1_ps(by)) {}

  void to_codes(const float* x, std::uint8_t* codes, std::uint16_t*& escapes) const {
    const __m512i escape = _mm512_set1_epi32(kFirstEscape);
    __m512i low = steps_of(x, factor);
    __m512i high = steps_of(x + 16, factor);
    const __mmask16 low_far = far_from_zero(low);
    const __mmask16 high_far = far_from_zero(high);
    if ((low_far | high_far) != 0) {
      escapes = store_escapes(low, low_far, escapes);
      escapes = store_escapes(high, high_far, escapes);
      low = _mm512_mask_mov_epi32(low, low_far, escape);
      high = _mm512_mask_mov_epi32(high, high_far, escape);
    }
    const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), join_nibbles(bytes));
  }

  static std::size_t count(const std::uint8_t* codes, std::uint8_t nibble) {
    const __m512i low = _mm512_set1_epi8(0x0F);
    const __m512i wanted = _mm512_set1_epi8(static_cast<char>(nibble));
    const __m512i bytes = _mm512_loadu_si512(codes);
    const __m512i shifted = _mm512_srli_epi16(bytes, 4);
    const __mmask64 first = _mm512_cmpeq_epi8_mask(_mm512_and_si512(bytes, low), wanted);
    const __mmask64 second = _mm512_cmpeq_epi8_mask(_mm512_and_si512(shifted, low), wanted);
    return static_cast<std::size_t>(_mm_popcnt_u64(first) + _mm_popcnt_u64(second));
  }

  template <bool kAdd>
  void from_codes(const std::uint8_t* codes, const std::uint16_t*& escapes, float* out) const {
    const __m256i nibbles = split_nibbles(codes);
    const __m256i bytes = extend_nibbles(nibbles);
    __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
    __m512i high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1));
    const __mmask32 far = _mm256_cmpeq_epi8_mask(nibbles, _mm256_set1_epi8(kFirstEscape));
    if (far != 0) {
      const auto low_far = static_cast<__mmask16>(far);
      const auto high_far = static_cast<__mmask16>(far >> 16);
      low = _mm512_mask_mov_epi32(low, low_far, load_escapes(low_far, escapes));
      high = _mm512_mask_mov_epi32(high, high_far, load_escapes(high_far, escapes));
    }
    put16<kAdd>(out, _mm512_mul_ps(_mm512_cvtepi32_ps(low), factor));
    put16<kAdd>(out + 16, _mm512_mul_ps(_mm512_cvtepi32_ps(high), factor));
  }

  void to_feet(const float* x, std::uint8_t*& feet) const {
    const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(x), factor);
    const __m512 absolute = _mm512_abs_ps(value);
    const __mmask16 zero = _mm512_cmp_ps_mask(absolute, _mm512_set1_ps(0.5F), _CMP_LE_OQ);
    const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(absolute), _mm512_set1_epi32(1 << (kFootShift - 1)));
    const __m512i magnitude = _mm512_srli_epi32(rounded, kFootShift);
    const __mmask16 there = _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(kLastFoot));
    const __m512i negative = _mm512_srli_epi32(_mm512_castps_si512(value), 31);
    const __m512i twice = _mm512_slli_epi32(magnitude, 1);
    const __m512i place = _mm512_sub_epi32(_mm512_set1_epi32(1 + 2 * kFirstFoot), twice);
    const __m512i symbols = _mm512_maskz_add_epi32(there, place, negative);
    const __m128i chosen = _mm512_cvtepi32_epi8(_mm512_maskz_compress_epi32(zero, symbols));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(feet), chosen);
    feet += _mm_popcnt_u32(zero);
  }
};

std::size_t add_feet(const std::uint8_t* codes, const std::uint8_t* feet, std::size_t n, float scale, float* out) {
  const __m512 factor = _mm512_set1_ps(scale);
  const std::uint8_t* next = feet;
  const std::size_t i = walk<32>(n, [&](std::size_t at) {
    const __m256i nibbles = split_nibbles(codes + at / 2);
    const __mmask32 zero = _mm256_testn_epi8_mask(nibbles, nibbles);
    put16<true>(out + at, values_of_feet(static_cast<__mmask16>(zero), next, factor));
    put16<true>(out + at + 16, values_of_feet(static_cast<__mmask16>(zero >> 16), next, factor));
  });
  next += kEcsqScalar.add_feet(codes + i / 2, next, n - i, scale, out + i);
  return static_cast<std::size_t>(next - feet);
}

}  // namespace

const EcsqKernels kEcsqAvx512 = {
    .to_codes = ecsq_to_codes<Codes>,
    .count = ecsq_count_by<Codes>,
    .from_codes = ecsq_from_codes<Codes>,
    .to_feet = ecsq_to_feet<Codes>,
    .add_feet = add_feet,
};

}  // namespace gradwire
