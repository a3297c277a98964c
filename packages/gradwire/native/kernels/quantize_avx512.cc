// `quantize`, 16 or 32 values at a time. By default, the control register makes conversions round to nearest even.
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

struct Codes {
  __m512 factor;

  explicit Codes(float by) : factor(_mm512_set1_ps(by)) {}

  // Returns 16 codes as signed bytes.
  __m128i codes_of(const float* x) const {
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factor)));
  }

  template <bool kAdd>
  void put_scaled(float* out, __m128i codes) const {
    put16<kAdd>(out, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), factor));
  }
};

struct Bytes : Codes {
  using Codes::Codes;
  static constexpr int kBits = 8;
  static constexpr std::size_t kEncoded = 16;
  static constexpr std::size_t kDecoded = 16;

  void encode(const float* x, std::uint8_t* codes) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), codes_of(x));
  }

  template <bool kAdd>
  void decode(const std::uint8_t* codes, float* out) const {
    put_scaled<kAdd>(out, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  }
};

struct Nibbles : Codes {
  using Codes::Codes;
  static constexpr int kBits = 4;
  static constexpr std::size_t kEncoded = 32;
  static constexpr std::size_t kDecoded = 32;

  void encode(const float* x, std::uint8_t* codes) const {
    const __m128i packed = join_nibbles(_mm256_set_m128i(codes_of(x + 16), codes_of(x)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), packed);
  }

  template <bool kAdd>
  void decode(const std::uint8_t* codes, float* out) const {
    const __m256i bytes = extend_nibbles(split_nibbles(codes));
    put_scaled<kAdd>(out, _mm256_castsi256_si128(bytes));
    put_scaled<kAdd>(out + 16, _mm256_extracti128_si256(bytes, 1));
  }
};

bool are_codes(const std::uint8_t* codes, std::size_t nbytes, int bits) {
  const __m512i low = _mm512_set1_epi8(bits == 8 ? 0 : 0x0F);
  const __m512i high = _mm512_set1_epi8(static_cast<char>(bits == 8 ? 0xFF : 0xF0));
  const __m512i low_fault = _mm512_set1_epi8(bits == 8 ? 1 : 0x08);  // with the mask 0, nothing equals 1
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
    .to_codes = quantize_to<Bytes, Nibbles>,
    .from_codes = quantize_from<Bytes, Nibbles>,
    .are_codes = are_codes,
};

}  // namespace gradwire
