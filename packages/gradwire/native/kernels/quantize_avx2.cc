// `quantize`, 32 values at a time. By default, the control register makes conversions round to nearest even.
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

struct Codes {
  __m256 factor;

  explicit Codes(float by) : factor(_mm256_set1_ps(by)) {}

  // Returns 32 codes as signed bytes.
  __m256i codes_of(const float* x) const {
    const auto code = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor)); };
    return narrow_to_bytes(code(0), code(1), code(2), code(3));
  }

  // Decodes the low 8 bytes of `codes`.
  template <bool kAdd>
  void put_scaled(float* out, __m128i codes) const {
    put8<kAdd>(out, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), factor));
  }
};

struct Bytes : Codes {
  using Codes::Codes;
  static constexpr int kBits = 8;
  static constexpr std::size_t kEncoded = 32;
  static constexpr std::size_t kDecoded = 8;

  void encode(const float* x, std::uint8_t* codes) const { store_vector(codes, codes_of(x)); }

  template <bool kAdd>
  void decode(const std::uint8_t* codes, float* out) const {
    put_scaled<kAdd>(out, load_quarter(codes));
  }
};

struct Nibbles : Codes {
  using Codes::Codes;
  static constexpr int kBits = 4;
  static constexpr std::size_t kEncoded = 32;
  static constexpr std::size_t kDecoded = 16;

  void encode(const float* x, std::uint8_t* codes) const { store_half(codes, join_nibbles(codes_of(x))); }

  template <bool kAdd>
  void decode(const std::uint8_t* codes, float* out) const {
    const __m128i bytes = extend_nibbles(split_nibbles(load_quarter(codes)));
    put_scaled<kAdd>(out, bytes);
    put_scaled<kAdd>(out + 8, _mm_srli_si128(bytes, 8));
  }
};

bool are_codes(const std::uint8_t* codes, std::size_t nbytes, int bits) {
  const __m256i low = _mm256_set1_epi8(bits == 8 ? 0 : 0x0F);
  const __m256i high = _mm256_set1_epi8(static_cast<char>(bits == 8 ? 0xFF : 0xF0));
  const __m256i low_fault = _mm256_set1_epi8(bits == 8 ? 1 : 0x08);  // with the mask 0, nothing equals 1
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
    .to_codes = quantize_to<Bytes, Nibbles>,
    .from_codes = quantize_from<Bytes, Nibbles>,
    .are_codes = are_codes,
};

}  // namespace gradwire
