// `bfp` with 7 mantissa bits, whose mantissas are whole bytes, in blocks of 16 k values; other blocks use the
// portable kernel.
#include "kernels/bfp.h"

#include "kernels/avx2.h"

namespace gradwire {

namespace {

// Computes 16 mantissas. The packs saturate at 127, and the maximum at -127.
__m128i mantissas_of(const float* x, __m256 scale) {
  const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
  const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), scale));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  return _mm_max_epi8(bytes, _mm_set1_epi8(-127));
}

struct Blocks {
  static constexpr std::size_t k16Blocks = 1;

  static void encode(const float* x, std::size_t block, std::uint8_t* out) {
    __m256i peak = _mm256_setzero_si256();
    for (std::size_t i = 0; i < block; i += 8) peak = _mm256_max_epu32(peak, magnitude8(load_vector(x + i)));
    const std::uint32_t exponent = bfp_exponent(largest_of(peak));
    const float scale = bfp_encode_scale(exponent, kBfpByteMantissa);
    // A scale of 0 masks off the mantissas, because infinity * 0 is NaN.
    const __m128i kept = _mm_set1_epi8(scale == 0.0F ? 0 : -1);
    *out++ = static_cast<std::uint8_t>(exponent);
    for (std::size_t i = 0; i < block; i += 16) {
      store_half(out + i, _mm_and_si128(kept, mantissas_of(x + i, _mm256_set1_ps(scale))));
    }
  }

  static void encode_16(const float* x, std::uint8_t* out) {
    prefetch(x, 2048);
    encode(x, 16, out);
  }

  template <bool kAdd>
  static void decode(const std::uint8_t* payload, std::size_t block, float* out) {
    const __m256 scale = _mm256_set1_ps(kBfpByteScales.of[*payload++]);
    for (std::size_t i = 0; i < block; i += 8) {
      const __m256i mantissas = _mm256_cvtepi8_epi32(load_quarter(payload + i));
      put8<kAdd>(out + i, _mm256_mul_ps(_mm256_cvtepi32_ps(mantissas), scale));
    }
  }
};

}  // namespace

const BfpKernels kBfpAvx2 = {.encode = bfp_encode<Blocks>, .decode = bfp_decode<Blocks>};

}  // namespace gradwire
