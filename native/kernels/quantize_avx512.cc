// `quantize`, 16 or 32 values at a time. Conversions round to nearest even as the control register says by default.
#include "kernels/quantize.h"

#include "kernels/avx512.h"

namespace gradwire {

namespace {

std::uint32_t peak_bits(const float* x, std::size_t n) {
  __m512i peaks[4] = {};
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (std::size_t j = 0; j < 4; ++j) {
      prefetch(x + i + 16 * j, 4096);
      peaks[j] = _mm512_max_epu32(peaks[j], magnitude16(load16_bits(x + i + 16 * j)));
    }
  }
  for (; i + 16 <= n; i += 16) peaks[0] = _mm512_max_epu32(peaks[0], magnitude16(load16_bits(x + i)));
  const std::uint32_t peak = _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_max_epu32(peaks[0], peaks[1]), _mm512_max_epu32(peaks[2], peaks[3])));
  const std::uint32_t rest = peak_bits_of(x + i, n - i);
  return peak > rest ? peak : rest;
}

// 16 codes as signed bytes.
__m128i codes_of(const float* x, __m512 inverse) {
  return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inverse)));
}

void to_bytes(const float* x, std::size_t n, float inverse, std::uint8_t* codes) {
  const __m512 factor = _mm512_set1_ps(inverse);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), codes_of(x + i, factor));
  kQuantizeScalar.to_codes(x + i, n - i, 8, inverse, codes + i);
}

// The multiply-add makes low + 16 * high of each pair of nibbles.
void to_nibbles(const float* x, std::size_t n, float inverse, std::uint8_t* codes) {
  const __m512 factor = _mm512_set1_ps(inverse);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i bytes = _mm256_set_m128i(codes_of(x + i + 16, factor), codes_of(x + i, factor));
    const __m256i nibbles = _mm256_and_si256(bytes, _mm256_set1_epi8(0x0F));
    const __m256i pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i / 2), _mm256_cvtepi16_epi8(pairs));
  }
  kQuantizeScalar.to_codes(x + i, n - i, 4, inverse, codes + i / 2);
}

void to_codes(const float* x, std::size_t n, int bits, float inverse, std::uint8_t* codes) {
  bits == 8 ? to_bytes(x, n, inverse, codes) : to_nibbles(x, n, inverse, codes);
}

template <bool kAdd>
void put_scaled(float* out, __m128i codes, __m512 scale) {
  put16<kAdd>(out, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), scale));
}

template <bool kAdd>
void from_bytes(const std::uint8_t* codes, std::size_t n, float scale, float* out) {
  const __m512 factor = _mm512_set1_ps(scale);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    put_scaled<kAdd>(out + i, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)), factor);
  }
  kQuantizeScalar.from_codes(codes + i, n - i, 8, scale, out + i, kAdd);
}

// A byte widened to a word, or-ed with itself four bits up, holds its nibbles in two bytes; (v ^ 8) - 8 extends the
// sign.
template <bool kAdd>
void from_nibbles(const std::uint8_t* codes, std::size_t n, float scale, float* out) {
  const __m512 factor = _mm512_set1_ps(scale);
  const __m256i eight = _mm256_set1_epi8(8);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i / 2)));
    const __m256i nibbles =
        _mm256_and_si256(_mm256_or_si256(words, _mm256_slli_epi16(words, 4)), _mm256_set1_epi8(0x0F));
    const __m256i bytes = _mm256_sub_epi8(_mm256_xor_si256(nibbles, eight), eight);
    put_scaled<kAdd>(out + i, _mm256_castsi256_si128(bytes), factor);
    put_scaled<kAdd>(out + i + 16, _mm256_extracti128_si256(bytes, 1), factor);
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
  const __m512i low = _mm512_set1_epi8(bits == 8 ? 0 : 0x0F);
  const __m512i high = _mm512_set1_epi8(static_cast<char>(bits == 8 ? 0xFF : 0xF0));
  const __m512i low_fault = _mm512_set1_epi8(bits == 8 ? 1 : 0x08);  // with the mask 0 nothing equals 1
  const __m512i high_fault = _mm512_set1_epi8(static_cast<char>(0x80));
  __mmask64 found = 0;
  std::size_t i = 0;
  for (; i + 64 <= nbytes; i += 64) {
    const __m512i bytes = _mm512_loadu_si512(codes + i);
    found |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(bytes, high), high_fault) |
             _mm512_cmpeq_epi8_mask(_mm512_and_si512(bytes, low), low_fault);
  }
  return found == 0 && kQuantizeScalar.are_codes(codes + i, nbytes - i, bits);
}

}  // namespace

const QuantizeKernels kQuantizeAvx512 = {
    .peak_bits = peak_bits,
    .to_codes = to_codes,
    .from_codes = from_codes,
    .are_codes = are_codes,
};

}  // namespace gradwire
