// Deltas of bfloat16 weights, 16 at a time. AVX2.
#include <cstring>

#include "kernels/avx2.h"
#include "kernels/delta.h"

namespace gradwire {

namespace {

constexpr std::size_t kPrefetchNbytes = 4096;
constexpr std::uint32_t kLowBits = 0x55555555U;

__m256i order(__m256i words) {
  const __m256i sign = _mm256_srai_epi16(words, 15);
  return _mm256_xor_si256(words, _mm256_and_si256(sign, _mm256_set1_epi16(0x7FFF)));
}

// Sixteen classes of 16 bits as four bytes: pairs to 4 bits, pairs of these to 8.
std::uint32_t pack_classes(__m256i classes) {
  const __m256i pairs = _mm256_madd_epi16(classes, _mm256_set1_epi32(1 | 4 << 16));
  const __m256i words = _mm256_packus_epi32(pairs, pairs);
  const __m256i bytes = _mm256_madd_epi16(words, _mm256_set1_epi32(1 | 16 << 16));
  const __m256i both = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 1, 4, 5, 0, 1, 4, 5));
  const __m128i four = _mm_shuffle_epi8(_mm256_castsi256_si128(both), _mm_set1_epi32(0x0C080400));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}

// The differences of four bytes of classes; those of class 3 are zero.
__m256i small_differences(std::uint32_t classes) {
  // Each word gets its byte, shifted so that its class has the bits 7..6, and looks up the low byte of -1, 0 or 1 with
  // the class and the high byte with the class and 4.
  const __m256i bytes = _mm256_shuffle_epi8(
      _mm256_set1_epi32(static_cast<int>(classes)),
      _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1,  //
                       2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1));
  const __m256i raised = _mm256_mullo_epi16(bytes, _mm256_set1_epi64x(0x0001000400100040));
  const __m256i code = _mm256_and_si256(_mm256_srli_epi16(raised, 6), _mm256_set1_epi16(3));
  const __m256i places =
      _mm256_or_si256(_mm256_or_si256(code, _mm256_slli_epi16(code, 8)), _mm256_set1_epi16(0x0400));
  const __m128i table = _mm_setr_epi8(0, -1, 1, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), places);
}

std::size_t code(const float* masters, std::size_t n, std::uint16_t* base, std::uint8_t* classes,
                 std::uint16_t* escapes) {
  std::uint16_t* at = escapes;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch(masters + i, kPrefetchNbytes);
    prefetch(base + i, kPrefetchNbytes / 2);
    const __m256i words = _mm256_setr_m128i(bf16_of(masters + i), bf16_of(masters + i + 8));
    const __m256i d = _mm256_sub_epi16(order(words), order(load_vector(base + i)));
    const __m256i u = _mm256_xor_si256(_mm256_slli_epi16(d, 1), _mm256_srai_epi16(d, 15));
    store_vector(base + i, words);
    const std::uint32_t codes = pack_classes(_mm256_min_epu16(u, _mm256_set1_epi16(3)));
    std::memcpy(classes + i / 4, &codes, 4);
    std::uint32_t large = codes & codes >> 1 & kLowBits;
    if (large == 0) continue;
    std::uint16_t values[16];
    store_vector(values, _mm256_sub_epi16(u, _mm256_set1_epi16(3)));
    for (; large != 0; large &= large - 1) *at++ = values[__builtin_ctz(large) / 2];
  }
  at += delta_code<std::uint16_t>(masters + i, n - i, base + i, classes + i / 4, at);
  return static_cast<std::size_t>(at - escapes);
}

void apply(const std::uint8_t* classes, const std::uint16_t* escapes, std::size_t n, std::uint16_t* base) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch(base + i, kPrefetchNbytes);
    std::uint32_t codes;
    std::memcpy(&codes, classes + i / 4, 4);
    __m256i d = small_differences(codes);
    std::uint32_t large = codes & codes >> 1 & kLowBits;
    if (large != 0) {
      std::uint16_t values[16];
      store_vector(values, d);
      for (; large != 0; large &= large - 1) {
        const auto u = static_cast<std::uint16_t>(*escapes++ + 3);
        values[__builtin_ctz(large) / 2] = static_cast<std::uint16_t>(u >> 1 ^ -(u & 1));
      }
      d = load_vector(values);
    }
    store_vector(base + i, order(_mm256_add_epi16(order(load_vector(base + i)), d)));
  }
  delta_apply_words<std::uint16_t>(classes + i / 4, escapes, n - i, base + i);
}

}  // namespace

const DeltaKernels kDeltaAvx2 = {
    .bf16 = {.code = code, .apply = apply},
    .fp32 = kDeltaFp32Here,
    .count_escapes = delta_count_escapes,
};

}  // namespace gradwire
