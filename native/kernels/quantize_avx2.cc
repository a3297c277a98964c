// `quantize`, 32 values at a time. Conversions round to nearest even as the control register says by default.
#include "kernels/quantize.h"

#include "kernels/avx2.h"

namespace gradwire {

namespace {

std::uint32_t peak_bits(const float* x, std::size_t n) {
  __m256i peaks[4] = {};
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    prefetch(x + i, 4096);
    prefetch(x + i + 16, 4096);
    for (std::size_t j = 0; j < 4; ++j) {
      peaks[j] = _mm256_max_epu32(peaks[j], magnitude8(load_vector(x + i + 8 * j)));
    }
  }
  const std::uint32_t peak =
      largest_of(_mm256_max_epu32(_mm256_max_epu32(peaks[0], peaks[1]), _mm256_max_epu32(peaks[2], peaks[3])));
  const std::uint32_t rest = peak_bits_of(x + i, n - i);
  return peak > rest ? peak : rest;
}

// 32 codes as signed bytes.
__m256i codes_of(const float* x, __m256 inverse) {
  const auto code = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse)); };
  return narrow_to_bytes(code(0), code(1), code(2), code(3));
}

void to_bytes(const float* x, std::size_t n, float inverse, std::uint8_t* codes) {
  const __m256 factor = _mm256_set1_ps(inverse);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) store_vector(codes + i, codes_of(x + i, factor));
  kQuantizeScalar.to_codes(x + i, n - i, 8, inverse, codes + i);
}

// The multiply-add makes low + 16 * high of each pair of nibbles; the pack works within lanes, hence the permutation.
void to_nibbles(const float* x, std::size_t n, float inverse, std::uint8_t* codes) {
  const __m256 factor = _mm256_set1_ps(inverse);
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i nibbles = _mm256_and_si256(codes_of(x + i, factor), _mm256_set1_epi8(0x0F));
    const __m256i pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0xD8);
    store_half(codes + i / 2, _mm256_castsi256_si128(bytes));
  }
  kQuantizeScalar.to_codes(x + i, n - i, 4, inverse, codes + i / 2);
}

void to_codes(const float* x, std::size_t n, int bits, float inverse, std::uint8_t* codes) {
  bits == 8 ? to_bytes(x, n, inverse, codes) : to_nibbles(x, n, inverse, codes);
}

// The low 8 bytes of `codes`.
template <bool kAdd>
void put_scaled(float* out, __m128i codes, __m256 scale) {
  put8<kAdd>(out, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale));
}

template <bool kAdd>
void from_bytes(const std::uint8_t* codes, std::size_t n, float scale, float* out) {
  const __m256 factor = _mm256_set1_ps(scale);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) put_scaled<kAdd>(out + i, load_quarter(codes + i), factor);
  kQuantizeScalar.from_codes(codes + i, n - i, 8, scale, out + i, kAdd);
}

// A byte widened to a word, or-ed with itself four bits up, holds its nibbles in two bytes; (v ^ 8) - 8 extends the
// sign.
template <bool kAdd>
void from_nibbles(const std::uint8_t* codes, std::size_t n, float scale, float* out) {
  const __m256 factor = _mm256_set1_ps(scale);
  const __m128i eight = _mm_set1_epi8(8);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i words = _mm_cvtepu8_epi16(load_quarter(codes + i / 2));
    const __m128i nibbles = _mm_and_si128(_mm_or_si128(words, _mm_slli_epi16(words, 4)), _mm_set1_epi8(0x0F));
    const __m128i bytes = _mm_sub_epi8(_mm_xor_si128(nibbles, eight), eight);
    put_scaled<kAdd>(out + i, bytes, factor);
    put_scaled<kAdd>(out + i + 8, _mm_srli_si128(bytes, 8), factor);
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
  const __m256i low = _mm256_set1_epi8(bits == 8 ? 0 : 0x0F);
  const __m256i high = _mm256_set1_epi8(static_cast<char>(bits == 8 ? 0xFF : 0xF0));
  const __m256i low_fault = _mm256_set1_epi8(bits == 8 ? 1 : 0x08);  // with the mask 0 nothing equals 1
  const __m256i high_fault = _mm256_set1_epi8(static_cast<char>(0x80));
  __m256i found = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 32 <= nbytes; i += 32) {
    const __m256i bytes = load_vector(codes + i);
    found = _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_and_si256(bytes, high), high_fault));
    found = _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_and_si256(bytes, low), low_fault));
  }
  return _mm256_testz_si256(found, found) != 0 && kQuantizeScalar.are_codes(codes + i, nbytes - i, bits);
}

}  // namespace

const QuantizeKernels kQuantizeAvx2 = {
    .peak_bits = peak_bits,
    .to_codes = to_codes,
    .from_codes = from_codes,
    .are_codes = are_codes,
};

}  // namespace gradwire
