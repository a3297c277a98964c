// Functions shared by the AVX2 kernels; included only by *_avx2.cc files.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"

namespace gradwire {

template <bool kAdd>
static inline void put8(float* out, __m256 values) {
  _mm256_storeu_ps(out, kAdd ? _mm256_add_ps(_mm256_loadu_ps(out), values) : values);
}

static inline __m256i load_vector(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

static inline void store_vector(void* to, __m256i bytes) { _mm256_storeu_si256(static_cast<__m256i*>(to), bytes); }

static inline __m128i load_half(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

static inline void store_half(void* to, __m128i bytes) { _mm_storeu_si128(static_cast<__m128i*>(to), bytes); }

static inline __m128i load_quarter(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }

static inline __m256i magnitude8(__m256i bits) { return _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF)); }

// Rounds floats to bfloat16: adds half a unit of the kept bits, minus one if they are even, and truncates. A NaN is
// truncated and made quiet.
static inline __m128i bf16_of(const float* x) {
  const __m256i bits = load_vector(x);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i raised = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i nan = _mm256_cmpgt_epi32(magnitude8(bits), _mm256_set1_epi32(kInfinityBits));
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i words = _mm256_blendv_epi8(_mm256_srli_epi32(raised, 16), quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

static inline std::uint32_t largest_of(__m256i words) {
  __m128i peak = _mm_max_epu32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  peak = _mm_max_epu32(peak, _mm_shuffle_epi32(peak, 0x4E));
  peak = _mm_max_epu32(peak, _mm_shuffle_epi32(peak, 0xB1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(peak));
}

// Narrows four vectors of dwords to one of bytes, saturated and in order. The packs work within 128-bit lanes, so their
// results are quartets of the vectors 0 1 2 3 0 1 2 3, which the permutation sorts.
static inline __m256i narrow_to_bytes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// See avx512.h.
static inline void prefetch(const void* from, std::size_t ahead_nbytes) {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(from) + ahead_nbytes), _MM_HINT_T0);
}

// Packs 32 signed nibbles, two per byte, the first in the low half. The multiply-add computes low + 16 * high of each
// pair. The pack works within lanes, hence the permutation.
static inline __m128i join_nibbles(__m256i bytes) {
  const __m256i nibbles = _mm256_and_si256(bytes, _mm256_set1_epi8(0x0F));
  const __m256i pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0xD8));
}

// Unpacks the nibbles of the low 8 bytes to one byte each. A byte widened to a word, or-ed with itself shifted by four
// bits, has its nibbles in two bytes.
static inline __m128i split_nibbles(__m128i bytes) {
  const __m128i words = _mm_cvtepu8_epi16(bytes);
  return _mm_and_si128(_mm_or_si128(words, _mm_slli_epi16(words, 4)), _mm_set1_epi8(0x0F));
}

// (v ^ 8) - 8 extends the sign.
static inline __m128i extend_nibbles(__m128i nibbles) {
  const __m128i eight = _mm_set1_epi8(8);
  return _mm_sub_epi8(_mm_xor_si128(nibbles, eight), eight);
}

}  // namespace gradwire
