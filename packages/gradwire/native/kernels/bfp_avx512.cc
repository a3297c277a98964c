// `bfp` with 7 mantissa bits, whose mantissas are whole bytes, in blocks of 16 k values; other blocks use the
// portable kernel.
#include "kernels/bfp.h"

#include "kernels/avx512.h"

namespace gradwire {

namespace {

inline void store_record(std::uint8_t* out, int exponent, __m128i mantissas) {
  *out = static_cast<std::uint8_t>(exponent);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 1), mantissas);
}

// Returns the largest element of each of four vectors, in order, in every 128-bit lane. Halving all four at once takes
// a quarter of the shuffles of four separate reductions.
inline __m512i peaks_of(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  __m512i peaks = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  peaks = _mm512_max_epu32(peaks, _mm512_shuffle_i32x4(peaks, peaks, 0x4E));
  return _mm512_max_epu32(peaks, _mm512_shuffle_i32x4(peaks, peaks, 0xB1));
}

// Returns the mantissas of block kBlock of four, not yet saturated. Its scale is lane kBlock of every 128-bit lane.
template <int kBlock>
inline __m512i mantissas_of(const float* x, __m512 scales) {
  const __m512 scale = _mm512_permute_ps(scales, kBlock * 0x55);
  return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * kBlock), scale));
}

struct Blocks {
  static constexpr std::size_t k16Blocks = 4;

  static void encode(const float* x, std::size_t block, std::uint8_t* out) {
    __m512i peak = magnitude16(load16_bits(x));
    for (std::size_t i = 16; i < block; i += 16) peak = _mm512_max_epu32(peak, magnitude16(load16_bits(x + i)));
    const std::uint32_t exponent = bfp_exponent(_mm512_reduce_max_epu32(peak));
    const float scale = bfp_encode_scale(exponent, kBfpByteMantissa);
    // With a scale of 0, no lane is converted, because infinity * 0 is NaN.
    const __mmask16 lanes = scale == 0.0F ? __mmask16{0} : __mmask16{0xFFFF};
    *out++ = static_cast<std::uint8_t>(exponent);
    for (std::size_t i = 0; i < block; i += 16) {
      const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(scale));
      const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(lanes, scaled));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm_max_epi8(bytes, _mm_set1_epi8(-127)));
    }
  }

  static void encode_16(const float* x, std::uint8_t* out) {
    for (std::size_t line = 0; line < 4; ++line) prefetch(x + 16 * line, 2048);
    const __m512i peaks = peaks_of(magnitude16(load16_bits(x)), magnitude16(load16_bits(x + 16)),
                                   magnitude16(load16_bits(x + 32)), magnitude16(load16_bits(x + 48)));
    const __m512i raw = _mm512_srli_epi32(peaks, 23);
    const __mmask16 flushed = _mm512_cmplt_epu32_mask(raw, _mm512_set1_epi32(kBfpSmallestExponent));
    const __mmask16 nonfinite = _mm512_cmpeq_epi32_mask(raw, _mm512_set1_epi32(kBfpNanExponent));
    if (nonfinite != 0) [[unlikely]] {
      for (int i = 0; i < 4; ++i) encode(x + 16 * i, 16, out + 17 * i);
      return;
    }
    const __m512i exponents = _mm512_mask_mov_epi32(raw, flushed, _mm512_setzero_si512());
    // bfp_encode_scale as bits: 2^(M - 1 + 127 - E), or 0.
    const __m512i bias = _mm512_set1_epi32(kBfpByteMantissa - 1 + 127 + 127);
    const __m512i scale_bits = _mm512_slli_epi32(_mm512_sub_epi32(bias, raw), 23);
    const __m512 scales = _mm512_castsi512_ps(_mm512_mask_mov_epi32(scale_bits, flushed, _mm512_setzero_si512()));
    // The packs saturate and work within lanes. Their results are quartets of dwords a b c d, which the permutation
    // sorts.
    const __m512i sort = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i words_ab = _mm512_packs_epi32(mantissas_of<0>(x, scales), mantissas_of<1>(x, scales));
    const __m512i words_cd = _mm512_packs_epi32(mantissas_of<2>(x, scales), mantissas_of<3>(x, scales));
    const __m512i bytes = _mm512_max_epi8(_mm512_packs_epi16(words_ab, words_cd), _mm512_set1_epi8(-127));
    const __m512i sorted = _mm512_permutexvar_epi32(sort, bytes);
    const __m128i four = _mm512_castsi512_si128(exponents);
    store_record(out, _mm_extract_epi32(four, 0), _mm512_castsi512_si128(sorted));
    store_record(out + 17, _mm_extract_epi32(four, 1), _mm512_extracti32x4_epi32(sorted, 1));
    store_record(out + 34, _mm_extract_epi32(four, 2), _mm512_extracti32x4_epi32(sorted, 2));
    store_record(out + 51, _mm_extract_epi32(four, 3), _mm512_extracti32x4_epi32(sorted, 3));
  }

  template <bool kAdd>
  static void decode(const std::uint8_t* payload, std::size_t block, float* out) {
    const __m512 scale = _mm512_set1_ps(kBfpByteScales.of[*payload++]);
    for (std::size_t i = 0; i < block; i += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(payload + i));
      put16<kAdd>(out + i, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale));
    }
  }
};

}  // namespace

const BfpKernels kBfpAvx512 = {.encode = bfp_encode<Blocks>, .decode = bfp_decode<Blocks>};

}  // namespace gradwire
