// Weight deltas, for 16 weights of bfloat16 or 8 of float32 at a time, with AVX2 (pdep and pext are slow on processors
// without AVX-512).
#include "kernels/avx2_lanes.h"
#include "kernels/delta.h"

namespace gradwire {

namespace {

constexpr std::size_t kPrefetchNbytes = 4096;

struct Bf16Vector {
  using Word = std::uint16_t;
  using Classes = std::uint32_t;
  static constexpr std::size_t kWeights = 16;

  static __m256i order(__m256i words) {
    const __m256i sign = _mm256_srai_epi16(words, 15);
    return _mm256_xor_si256(words, _mm256_and_si256(sign, _mm256_set1_epi16(0x7FFF)));
  }

  // Packs sixteen classes of 16 bits to four bytes: pairs to 4 bits, and pairs of these to 8.
  static Classes pack_classes(__m256i classes) {
    const __m256i pairs = _mm256_madd_epi16(classes, _mm256_set1_epi32(1 | 4 << 16));
    const __m256i words = _mm256_packus_epi32(pairs, pairs);
    const __m256i bytes = _mm256_madd_epi16(words, _mm256_set1_epi32(1 | 16 << 16));
    const __m256i both = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 1, 4, 5, 0, 1, 4, 5));
    const __m128i four = _mm_shuffle_epi8(_mm256_castsi256_si128(both), _mm_set1_epi32(0x0C080400));
    return static_cast<Classes>(_mm_cvtsi128_si32(four));
  }

  // Unpacks four bytes of classes to sixteen words.
  static __m256i unpack_classes(Classes classes) {
    // Each word gets its byte, shifted so that its class is in bits 7..6.
    const __m256i bytes = _mm256_shuffle_epi8(
        _mm256_set1_epi32(static_cast<int>(classes)),
        _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1,  //
                         2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1));
    const __m256i raised = _mm256_mullo_epi16(bytes, _mm256_set1_epi64x(0x0001000400100040));
    return _mm256_and_si256(_mm256_srli_epi16(raised, 6), _mm256_set1_epi16(3));
  }

  // Returns the mask of words: the first eight in bits 0..7, the others in bits 16..23.
  static unsigned words_of(__m256i mask) {
    return static_cast<unsigned>(_mm256_movemask_epi8(_mm256_packs_epi16(mask, mask))) & 0x00FF00FFU;
  }

  static void store_escapes(__m128i words, unsigned which, Word*& at) {
    store_half(at, narrow_to_words(gather_lanes(_mm256_cvtepu16_epi32(words), which)));
    at += _mm_popcnt_u32(which);
  }

  static __m128i load_escapes(unsigned which, const Word*& from) {
    const __m256i spread = spread_lanes(_mm256_cvtepu16_epi32(load_half(from)), which);
    from += _mm_popcnt_u32(which);
    return narrow_to_words(spread);
  }

  static Classes code(const float* masters, Word* base, Word*& escapes) {
    prefetch(masters, kPrefetchNbytes);
    prefetch(base, kPrefetchNbytes / 2);
    const __m256i words = _mm256_setr_m128i(bf16_of(masters), bf16_of(masters + 8));
    const __m256i d = _mm256_sub_epi16(order(words), order(load_vector(base)));
    const __m256i u = _mm256_xor_si256(_mm256_slli_epi16(d, 1), _mm256_srai_epi16(d, 15));
    store_vector(base, words);
    const __m256i classed = _mm256_min_epu16(u, _mm256_set1_epi16(3));
    if (const unsigned large = words_of(_mm256_cmpeq_epi16(classed, _mm256_set1_epi16(3))); large != 0) {
      const __m256i values = _mm256_sub_epi16(u, _mm256_set1_epi16(3));
      store_escapes(_mm256_castsi256_si128(values), large & 0xFF, escapes);
      store_escapes(_mm256_extracti128_si256(values, 1), large >> 16, escapes);
    }
    return pack_classes(classed);
  }

  static void apply(Classes classes, const Word*& escapes, Word* base) {
    prefetch(base, kPrefetchNbytes);
    __m256i u = unpack_classes(classes);
    const __m256i is_large = _mm256_cmpeq_epi16(u, _mm256_set1_epi16(3));
    if (const unsigned large = words_of(is_large); large != 0) {
      const __m128i low = load_escapes(large & 0xFF, escapes);
      const __m256i spread = _mm256_setr_m128i(low, load_escapes(large >> 16, escapes));
      u = _mm256_add_epi16(u, _mm256_and_si256(spread, is_large));
    }
    const __m256i odd = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_and_si256(u, _mm256_set1_epi16(1)));
    const __m256i d = _mm256_xor_si256(_mm256_srli_epi16(u, 1), odd);
    store_vector(base, order(_mm256_add_epi16(order(load_vector(base)), d)));
  }
};

struct Fp32Vector {
  using Word = std::uint32_t;
  using Classes = std::uint16_t;
  static constexpr std::size_t kWeights = 8;

  static __m256i order(__m256i words) {
    const __m256i sign = _mm256_srai_epi32(words, 31);
    return _mm256_xor_si256(words, _mm256_and_si256(sign, _mm256_set1_epi32(0x7FFFFFFF)));
  }

  // Interleaves the bits of two bytes.
  static Classes interleave(unsigned low, unsigned high) {
    unsigned both = low | high << 16;
    both = (both | both << 4) & 0x0F0F0F0FU;
    both = (both | both << 2) & 0x33333333U;
    both = (both | both << 1) & 0x55555555U;
    return static_cast<Classes>(both | both >> 15);
  }

  static Classes code(const float* masters, Word* base, Word*& escapes) {
    prefetch(masters, kPrefetchNbytes);
    prefetch(base, kPrefetchNbytes);
    const __m256i words = load_vector(masters);
    const __m256i d = _mm256_sub_epi32(order(words), order(load_vector(base)));
    const __m256i u = _mm256_xor_si256(_mm256_slli_epi32(d, 1), _mm256_srai_epi32(d, 31));
    store_vector(base, words);
    const __m256i classed = _mm256_min_epu32(u, _mm256_set1_epi32(3));
    const unsigned low = set_of(_mm256_slli_epi32(classed, 31));
    const unsigned high = set_of(_mm256_slli_epi32(classed, 30));
    const unsigned large = low & high;
    store_vector(escapes, gather_lanes(_mm256_sub_epi32(u, _mm256_set1_epi32(3)), large));
    escapes += _mm_popcnt_u32(large);
    return interleave(low, high);
  }

  static void apply(Classes classes, const Word*& escapes, Word* base) {
    prefetch(base, kPrefetchNbytes);
    const __m256i three = _mm256_set1_epi32(3);
    const __m256i shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i classed = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(classes), shifts), three);
    const __m256i is_large = _mm256_cmpeq_epi32(classed, three);
    const unsigned large = set_of(is_large);
    const __m256i spread = _mm256_and_si256(spread_lanes(load_vector(escapes), large), is_large);
    escapes += _mm_popcnt_u32(large);
    const __m256i u = _mm256_add_epi32(classed, spread);
    const __m256i odd = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_and_si256(u, _mm256_set1_epi32(1)));
    const __m256i d = _mm256_xor_si256(_mm256_srli_epi32(u, 1), odd);
    store_vector(base, order(_mm256_add_epi32(order(load_vector(base)), d)));
  }
};

}  // namespace

const DeltaKernels kDeltaAvx2 = kDeltaKernelsOf<Bf16Vector, Fp32Vector>;

}  // namespace gradwire
