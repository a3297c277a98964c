// Deltas of weights: 16 of bfloat16, or 8 of float32, at a time. AVX2 (pdep and pext are slow where there is no AVX-512).
#include <cstring>

#include "kernels/avx2_lanes.h"
#include "kernels/delta.h"

namespace gradwire {

namespace {

constexpr std::size_t kPrefetchNbytes = 4096;

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

// Four bytes of classes as sixteen words.
__m256i unpack_classes(std::uint32_t classes) {
  // Each word gets its byte, shifted so that its class has the bits 7..6.
  const __m256i bytes = _mm256_shuffle_epi8(
      _mm256_set1_epi32(static_cast<int>(classes)),
      _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1,  //
                       2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1));
  const __m256i raised = _mm256_mullo_epi16(bytes, _mm256_set1_epi64x(0x0001000400100040));
  return _mm256_and_si256(_mm256_srli_epi16(raised, 6), _mm256_set1_epi16(3));
}

// The words of a mask: the first eight in the bits 0..7, the others in 16..23.
unsigned words_of(__m256i mask) {
  return static_cast<unsigned>(_mm256_movemask_epi8(_mm256_packs_epi16(mask, mask))) & 0x00FF00FFU;
}

std::uint16_t* store_escapes(__m128i words, unsigned which, std::uint16_t* at) {
  store_half(at, narrow_to_words(gather_lanes(_mm256_cvtepu16_epi32(words), which)));
  return at + _mm_popcnt_u32(which);
}

__m128i load_escapes(unsigned which, const std::uint16_t*& from) {
  const __m256i spread = spread_lanes(_mm256_cvtepu16_epi32(load_half(from)), which);
  from += _mm_popcnt_u32(which);
  return narrow_to_words(spread);
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
    const __m256i classed = _mm256_min_epu16(u, _mm256_set1_epi16(3));
    const std::uint32_t codes = pack_classes(classed);
    std::memcpy(classes + i / 4, &codes, 4);
    const unsigned large = words_of(_mm256_cmpeq_epi16(classed, _mm256_set1_epi16(3)));
    if (large == 0) continue;
    const __m256i values = _mm256_sub_epi16(u, _mm256_set1_epi16(3));
    at = store_escapes(_mm256_castsi256_si128(values), large & 0xFF, at);
    at = store_escapes(_mm256_extracti128_si256(values, 1), large >> 16, at);
  }
  at += delta_code<std::uint16_t>(masters + i, n - i, base + i, classes + i / 4, at);
  return static_cast<std::size_t>(at - escapes);
}

void apply(const std::uint8_t* classes, const std::uint16_t* escapes, std::size_t n, std::uint16_t* base) {
  std::size_t i = 0;
  const __m256i three = _mm256_set1_epi16(3);
  for (; i + 16 <= n; i += 16) {
    prefetch(base + i, kPrefetchNbytes);
    std::uint32_t codes;
    std::memcpy(&codes, classes + i / 4, 4);
    __m256i u = unpack_classes(codes);
    const __m256i is_large = _mm256_cmpeq_epi16(u, three);
    const unsigned large = words_of(is_large);
    if (large != 0) {
      const __m128i low = load_escapes(large & 0xFF, escapes);
      const __m256i spread = _mm256_setr_m128i(low, load_escapes(large >> 16, escapes));
      u = _mm256_add_epi16(u, _mm256_and_si256(spread, is_large));
    }
    const __m256i odd = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_and_si256(u, _mm256_set1_epi16(1)));
    const __m256i d = _mm256_xor_si256(_mm256_srli_epi16(u, 1), odd);
    store_vector(base + i, order(_mm256_add_epi16(order(load_vector(base + i)), d)));
  }
  delta_apply_words<std::uint16_t>(classes + i / 4, escapes, n - i, base + i);
}

__m256i order32(__m256i words) {
  const __m256i sign = _mm256_srai_epi32(words, 31);
  return _mm256_xor_si256(words, _mm256_and_si256(sign, _mm256_set1_epi32(0x7FFFFFFF)));
}

// The bits of two bytes in turn.
std::uint16_t interleave(unsigned low, unsigned high) {
  unsigned both = low | high << 16;
  both = (both | both << 4) & 0x0F0F0F0FU;
  both = (both | both << 2) & 0x33333333U;
  both = (both | both << 1) & 0x55555555U;
  return static_cast<std::uint16_t>(both | both >> 15);
}

std::size_t code32(const float* masters, std::size_t n, std::uint32_t* base, std::uint8_t* classes,
                   std::uint32_t* escapes) {
  std::uint32_t* at = escapes;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    prefetch(masters + i, kPrefetchNbytes);
    prefetch(base + i, kPrefetchNbytes);
    const __m256i words = load_vector(masters + i);
    const __m256i d = _mm256_sub_epi32(order32(words), order32(load_vector(base + i)));
    const __m256i u = _mm256_xor_si256(_mm256_slli_epi32(d, 1), _mm256_srai_epi32(d, 31));
    store_vector(base + i, words);
    const __m256i classed = _mm256_min_epu32(u, _mm256_set1_epi32(3));
    const unsigned low = set_of(_mm256_slli_epi32(classed, 31));
    const unsigned high = set_of(_mm256_slli_epi32(classed, 30));
    const std::uint16_t codes = interleave(low, high);
    std::memcpy(classes + i / 4, &codes, 2);
    const unsigned large = low & high;
    store_vector(at, gather_lanes(_mm256_sub_epi32(u, _mm256_set1_epi32(3)), large));
    at += _mm_popcnt_u32(large);
  }
  at += delta_code<std::uint32_t>(masters + i, n - i, base + i, classes + i / 4, at);
  return static_cast<std::size_t>(at - escapes);
}

void apply32(const std::uint8_t* classes, const std::uint32_t* escapes, std::size_t n, std::uint32_t* base) {
  std::size_t i = 0;
  const __m256i three = _mm256_set1_epi32(3);
  const __m256i shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
  for (; i + 8 <= n; i += 8) {
    prefetch(base + i, kPrefetchNbytes);
    std::uint16_t codes;
    std::memcpy(&codes, classes + i / 4, 2);
    const __m256i classed = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(codes), shifts), three);
    const __m256i is_large = _mm256_cmpeq_epi32(classed, three);
    const unsigned large = set_of(is_large);
    const __m256i spread = _mm256_and_si256(spread_lanes(load_vector(escapes), large), is_large);
    escapes += _mm_popcnt_u32(large);
    const __m256i u = _mm256_add_epi32(classed, spread);
    const __m256i odd = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_and_si256(u, _mm256_set1_epi32(1)));
    const __m256i d = _mm256_xor_si256(_mm256_srli_epi32(u, 1), odd);
    store_vector(base + i, order32(_mm256_add_epi32(order32(load_vector(base + i)), d)));
  }
  delta_apply_words<std::uint32_t>(classes + i / 4, escapes, n - i, base + i);
}

}  // namespace

const DeltaKernels kDeltaAvx2 = {
    .bf16 = {.code = code, .apply = apply},
    .fp32 = {.code = code32, .apply = apply32},
    .count_escapes = delta_count_escapes,
};

}  // namespace gradwire
