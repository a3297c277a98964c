// Deltas of weights: 32 of bfloat16, or 16 of float32, at a time. AVX-512 F, BW, DQ, VL and BMI2.
#include <cstring>

#include "kernels/avx512.h"
#include "kernels/delta.h"

namespace gradwire {

namespace {

constexpr std::uint64_t kLowBits = 0x5555555555555555U;
constexpr std::size_t kPrefetchNbytes = 4096;

__m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }

__m512i order(__m512i words) {
  const __m512i sign = _mm512_srai_epi16(words, 15);
  return _mm512_xor_si512(words, _mm512_and_si512(sign, _mm512_set1_epi16(0x7FFF)));
}

// There is no instruction for words of 16 bits in this target, so that each half goes through dwords.
std::uint16_t* store_escapes(__m512i words, __mmask32 which, std::uint16_t* at) {
  const auto store = [&](__m256i half, __mmask16 mask) {
    const __m512i chosen = _mm512_maskz_compress_epi32(mask, _mm512_cvtepu16_epi32(half));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(chosen));
    at += _mm_popcnt_u32(mask);
  };
  store(_mm512_castsi512_si256(words), static_cast<__mmask16>(which));
  store(_mm512_extracti64x4_epi64(words, 1), static_cast<__mmask16>(which >> 16));
  return at;
}

__m512i load_escapes(__mmask32 which, const std::uint16_t*& from) {
  const auto load = [&](__mmask16 mask) {
    const __m512i next = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    from += _mm_popcnt_u32(mask);
    return _mm512_cvtepi32_epi16(_mm512_maskz_expand_epi32(mask, next));
  };
  const __m256i low = load(static_cast<__mmask16>(which));
  return join(low, load(static_cast<__mmask16>(which >> 16)));
}

std::size_t code(const float* masters, std::size_t n, std::uint16_t* base, std::uint8_t* classes,
                 std::uint16_t* escapes) {
  std::uint16_t* at = escapes;
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    prefetch(masters + i, kPrefetchNbytes);
    prefetch(masters + i + 16, kPrefetchNbytes);
    prefetch(base + i, kPrefetchNbytes / 2);
    const __m512i words = join(bf16_of(masters + i), bf16_of(masters + i + 16));
    const __m512i d = _mm512_sub_epi16(order(words), order(_mm512_loadu_si512(base + i)));
    const __m512i u = _mm512_xor_si512(_mm512_slli_epi16(d, 1), _mm512_srai_epi16(d, 15));
    _mm512_storeu_si512(base + i, words);
    const __mmask32 large = _mm512_cmpgt_epu16_mask(u, _mm512_set1_epi16(2));
    const __mmask32 low = _mm512_test_epi16_mask(u, _mm512_set1_epi16(1)) | large;
    const __mmask32 high = _mm512_test_epi16_mask(u, _mm512_set1_epi16(2)) | large;
    const std::uint64_t codes = _pdep_u64(low, kLowBits) | _pdep_u64(high, kLowBits << 1);
    std::memcpy(classes + i / 4, &codes, 8);
    if (large != 0) at = store_escapes(_mm512_sub_epi16(u, _mm512_set1_epi16(3)), large, at);
  }
  at += delta_code<std::uint16_t>(masters + i, n - i, base + i, classes + i / 4, at);
  return static_cast<std::size_t>(at - escapes);
}

void apply(const std::uint8_t* classes, const std::uint16_t* escapes, std::size_t n, std::uint16_t* base) {
  std::size_t i = 0;
  const __m512i one = _mm512_set1_epi16(1);
  for (; i + 32 <= n; i += 32) {
    prefetch(base + i, kPrefetchNbytes);
    std::uint64_t codes;
    std::memcpy(&codes, classes + i / 4, 8);
    const auto low = static_cast<__mmask32>(_pext_u64(codes, kLowBits));
    const auto high = static_cast<__mmask32>(_pext_u64(codes, kLowBits << 1));
    __m512i d = _mm512_movm_epi16(low & ~high);
    d = _mm512_mask_mov_epi16(d, high & ~low, one);
    const __mmask32 large = low & high;
    if (large != 0) {
      const __m512i u = _mm512_add_epi16(load_escapes(large, escapes), _mm512_set1_epi16(3));
      const __m512i odd = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_and_si512(u, one));
      d = _mm512_mask_mov_epi16(d, large, _mm512_xor_si512(_mm512_srli_epi16(u, 1), odd));
    }
    const __m512i old = order(_mm512_loadu_si512(base + i));
    _mm512_storeu_si512(base + i, order(_mm512_add_epi16(old, d)));
  }
  delta_apply_words<std::uint16_t>(classes + i / 4, escapes, n - i, base + i);
}

__m512i order32(__m512i words) {
  const __m512i sign = _mm512_srai_epi32(words, 31);
  return _mm512_xor_si512(words, _mm512_and_si512(sign, _mm512_set1_epi32(0x7FFFFFFF)));
}

std::size_t code32(const float* masters, std::size_t n, std::uint32_t* base, std::uint8_t* classes,
                   std::uint32_t* escapes) {
  std::uint32_t* at = escapes;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch(masters + i, kPrefetchNbytes);
    prefetch(base + i, kPrefetchNbytes);
    const __m512i words = load16_bits(masters + i);
    const __m512i d = _mm512_sub_epi32(order32(words), order32(_mm512_loadu_si512(base + i)));
    const __m512i u = _mm512_xor_si512(_mm512_slli_epi32(d, 1), _mm512_srai_epi32(d, 31));
    _mm512_storeu_si512(base + i, words);
    const __mmask16 large = _mm512_cmpgt_epu32_mask(u, _mm512_set1_epi32(2));
    const auto low = static_cast<__mmask16>(_mm512_test_epi32_mask(u, _mm512_set1_epi32(1)) | large);
    const auto high = static_cast<__mmask16>(_mm512_test_epi32_mask(u, _mm512_set1_epi32(2)) | large);
    const auto codes = static_cast<std::uint32_t>(_pdep_u64(low, kLowBits) | _pdep_u64(high, kLowBits << 1));
    std::memcpy(classes + i / 4, &codes, 4);
    const __m512i values = _mm512_sub_epi32(u, _mm512_set1_epi32(3));
    _mm512_storeu_si512(at, _mm512_maskz_compress_epi32(large, values));
    at += _mm_popcnt_u32(large);
  }
  at += delta_code<std::uint32_t>(masters + i, n - i, base + i, classes + i / 4, at);
  return static_cast<std::size_t>(at - escapes);
}

void apply32(const std::uint8_t* classes, const std::uint32_t* escapes, std::size_t n, std::uint32_t* base) {
  std::size_t i = 0;
  const __m512i one = _mm512_set1_epi32(1);
  for (; i + 16 <= n; i += 16) {
    prefetch(base + i, kPrefetchNbytes);
    std::uint32_t codes;
    std::memcpy(&codes, classes + i / 4, 4);
    const auto low = static_cast<__mmask16>(_pext_u64(codes, kLowBits));
    const auto high = static_cast<__mmask16>(_pext_u64(codes, kLowBits << 1));
    const auto large = static_cast<__mmask16>(low & high);
    const __m512i small = _mm512_mask_mov_epi32(_mm512_maskz_mov_epi32(low, one), high, _mm512_set1_epi32(2));
    const __m512i raised = _mm512_add_epi32(_mm512_loadu_si512(escapes), _mm512_set1_epi32(3));
    escapes += _mm_popcnt_u32(large);
    const __m512i u = _mm512_mask_expand_epi32(small, large, raised);
    const __m512i odd = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_and_si512(u, one));
    const __m512i d = _mm512_xor_si512(_mm512_srli_epi32(u, 1), odd);
    const __m512i old = order32(_mm512_loadu_si512(base + i));
    _mm512_storeu_si512(base + i, order32(_mm512_add_epi32(old, d)));
  }
  delta_apply_words<std::uint32_t>(classes + i / 4, escapes, n - i, base + i);
}

}  // namespace

const DeltaKernels kDeltaAvx512 = {
    .bf16 = {.code = code, .apply = apply},
    .fp32 = {.code = code32, .apply = apply32},
    .count_escapes = delta_count_escapes,
};

}  // namespace gradwire
