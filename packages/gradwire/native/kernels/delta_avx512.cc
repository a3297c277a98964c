// Weight deltas, for 32 weights of bfloat16 or 16 of float32 at a time, with AVX-512 F, BW, DQ, VL, and BMI2.
#include "kernels/avx512.h"
#include "kernels/delta.h"

namespace gradwire {

namespace {

constexpr std::uint64_t kLowBits = 0x5555555555555555U;
constexpr std::size_t kPrefetchNbytes = 4096;

__m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

// Interleaves the lower and the upper bits of classes, and back.
std::uint64_t interleave(std::uint32_t low, std::uint32_t high) {
  return _pdep_u64(low, kLowBits) | _pdep_u64(high, kLowBits << 1);
}

std::uint32_t low_bits(std::uint64_t classes) { return static_cast<std::uint32_t>(_pext_u64(classes, kLowBits)); }

std::uint32_t high_bits(std::uint64_t classes) { return low_bits(classes >> 1); }

struct Bf16Vector {
  using Word = std::uint16_t;
  using Classes = std::uint64_t;
  static constexpr std::size_t kWeights = 32;

  static __m512i order(__m512i words) {
    const __m512i sign = _mm512_srai_epi16(words, 15);
    return _mm512_xor_si512(words, _mm512_and_si512(sign, _mm512_set1_epi16(0x7FFF)));
  }

  // This target can't compress or expand 16-bit words, so each half is processed as dwords.
  static void store_escapes(__m512i words, __mmask32 which, Word*& at) {
    const auto store = [&](__m256i half, __mmask16 mask) {
      const __m512i chosen = _mm512_maskz_compress_epi32(mask, _mm512_cvtepu16_epi32(half));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(chosen));
      at += _mm_popcnt_u32(mask);
    };
    store(_mm512_castsi512_si256(words), static_cast<__mmask16>(which));
    store(_mm512_extracti64x4_epi64(words, 1), static_cast<__mmask16>(which >> 16));
  }

  static __m512i load_escapes(__mmask32 which, const Word*& from) {
    const auto load = [&](__mmask16 mask) {
      const __m512i next = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
      from += _mm_popcnt_u32(mask);
      return _mm512_cvtepi32_epi16(_mm512_maskz_expand_epi32(mask, next));
    };
    const __m256i low = load(static_cast<__mmask16>(which));
    return join(low, load(static_cast<__mmask16>(which >> 16)));
  }

  static Classes code(const float* masters, Word* base, Word*& escapes) {
    prefetch(masters, kPrefetchNbytes);
    prefetch(masters + 16, kPrefetchNbytes);
    prefetch(base, kPrefetchNbytes / 2);
    const __m512i words = join(bf16_of(masters), bf16_of(masters + 16));
    const __m512i d = _mm512_sub_epi16(order(words), order(_mm512_loadu_si512(base)));
    const __m512i u = _mm512_xor_si512(_mm512_slli_epi16(d, 1), _mm512_srai_epi16(d, 15));
    _mm512_storeu_si512(base, words);
    const __mmask32 large = _mm512_cmpgt_epu16_mask(u, _mm512_set1_epi16(2));
    const __mmask32 low = _mm512_test_epi16_mask(u, _mm512_set1_epi16(1)) | large;
    const __mmask32 high = _mm512_test_epi16_mask(u, _mm512_set1_epi16(2)) | large;
    if (large != 0) store_escapes(_mm512_sub_epi16(u, _mm512_set1_epi16(3)), large, escapes);
    return interleave(low, high);
  }

  static void apply(Classes classes, const Word*& escapes, Word* base) {
    prefetch(base, kPrefetchNbytes);
    const __m512i one = _mm512_set1_epi16(1);
    const __mmask32 low = low_bits(classes);
    const __mmask32 high = high_bits(classes);
    __m512i d = _mm512_movm_epi16(low & ~high);
    d = _mm512_mask_mov_epi16(d, high & ~low, one);
    if (const __mmask32 large = low & high; large != 0) {
      const __m512i u = _mm512_add_epi16(load_escapes(large, escapes), _mm512_set1_epi16(3));
      const __m512i odd = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_and_si512(u, one));
      d = _mm512_mask_mov_epi16(d, large, _mm512_xor_si512(_mm512_srli_epi16(u, 1), odd));
    }
    const __m512i old = order(_mm512_loadu_si512(base));
    _mm512_storeu_si512(base, order(_mm512_add_epi16(old, d)));
  }
};

struct Fp32Vector {
  using Word = std::uint32_t;
  using Classes = std::uint32_t;
  static constexpr std::size_t kWeights = 16;

  static __m512i order(__m512i words) {
    const __m512i sign = _mm512_srai_epi32(words, 31);
    return _mm512_xor_si512(words, _mm512_and_si512(sign, _mm512_set1_epi32(0x7FFFFFFF)));
  }

  static Classes code(const float* masters, Word* base, Word*& escapes) {
    prefetch(masters, kPrefetchNbytes);
    prefetch(base, kPrefetchNbytes);
    const __m512i words = load16_bits(masters);
    const __m512i d = _mm512_sub_epi32(order(words), order(_mm512_loadu_si512(base)));
    const __m512i u = _mm512_xor_si512(_mm512_slli_epi32(d, 1), _mm512_srai_epi32(d, 31));
    _mm512_storeu_si512(base, words);
    const __mmask16 large = _mm512_cmpgt_epu32_mask(u, _mm512_set1_epi32(2));
    const auto low = static_cast<__mmask16>(_mm512_test_epi32_mask(u, _mm512_set1_epi32(1)) | large);
    const auto high = static_cast<__mmask16>(_mm512_test_epi32_mask(u, _mm512_set1_epi32(2)) | large);
    const __m512i values = _mm512_sub_epi32(u, _mm512_set1_epi32(3));
    _mm512_storeu_si512(escapes, _mm512_maskz_compress_epi32(large, values));
    escapes += _mm_popcnt_u32(large);
    return static_cast<Classes>(interleave(low, high));
  }

  static void apply(Classes classes, const Word*& escapes, Word* base) {
    prefetch(base, kPrefetchNbytes);
    const __m512i one = _mm512_set1_epi32(1);
    const auto low = static_cast<__mmask16>(low_bits(classes));
    const auto high = static_cast<__mmask16>(high_bits(classes));
    const auto large = static_cast<__mmask16>(low & high);
    const __m512i small = _mm512_mask_mov_epi32(_mm512_maskz_mov_epi32(low, one), high, _mm512_set1_epi32(2));
    const __m512i raised = _mm512_add_epi32(_mm512_loadu_si512(escapes), _mm512_set1_epi32(3));
    escapes += _mm_popcnt_u32(large);
    const __m512i u = _mm512_mask_expand_epi32(small, large, raised);
    const __m512i odd = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_and_si512(u, one));
    const __m512i d = _mm512_xor_si512(_mm512_srli_epi32(u, 1), odd);
    const __m512i old = order(_mm512_loadu_si512(base));
    _mm512_storeu_si512(base, order(_mm512_add_epi32(old, d)));
  }
};

}  // namespace

const DeltaKernels kDeltaAvx512 = kDeltaKernelsOf<Bf16Vector, Fp32Vector>;

}  // namespace gradwire
