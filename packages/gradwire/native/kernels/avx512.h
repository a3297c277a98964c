// Functions shared by the AVX-512 kernels; included only by *_avx512.cc files.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"

namespace gradwire {

template <bool kAdd>
static inline void put16(float* out, __m512 values) {
  _mm512_storeu_ps(out, kAdd ? _mm512_add_ps(_mm512_loadu_ps(out), values) : values);
}

static inline __m512i load16_bits(const float* x) { return _mm512_loadu_si512(x); }

static inline __m512i magnitude16(__m512i bits) { return _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF)); }

// Rounds floats to bfloat16: adds half a unit of the kept bits, minus one if they are even, and truncates. A NaN is
// truncated and made quiet.
static inline __m256i bf16_of(const float* x) {
  const __m512i bits = load16_bits(x);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i raised = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __mmask16 nan = _mm512_cmpgt_epu32_mask(magnitude16(bits), _mm512_set1_epi32(kInfinityBits));
  const __m512i rounded = _mm512_srli_epi32(raised, 16);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40)));
}

// The hardware prefetcher stops at the end of a 4 KiB page. Prefetching the next page's lines keeps memory busy until
// it restarts. Prefetching any address is harmless, even past the array's end, so the address is computed as an
// integer.
static inline void prefetch(const void* from, std::size_t ahead_nbytes) {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(from) + ahead_nbytes), _MM_HINT_T0);
}

// Packs 32 signed nibbles, two per byte, the first in the low half. The multiply-add computes low + 16 * high of each
// pair.
static inline __m128i join_nibbles(__m256i bytes) {
  const __m256i nibbles = _mm256_and_si256(bytes, _mm256_set1_epi8(0x0F));
  return _mm256_cvtepi16_epi8(_mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001)));
}

// Unpacks the nibbles of 16 bytes to one byte each. A byte widened to a word, or-ed with itself shifted by four bits,
// has its nibbles in two bytes.
static inline __m256i split_nibbles(const std::uint8_t* from) {
  const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_and_si256(_mm256_or_si256(words, _mm256_slli_epi16(words, 4)), _mm256_set1_epi8(0x0F));
}

// (v ^ 8) - 8 extends the sign.
static inline __m256i extend_nibbles(__m256i nibbles) {
  const __m256i eight = _mm256_set1_epi8(8);
  return _mm256_sub_epi8(_mm256_xor_si256(nibbles, eight), eight);
}

}  // namespace gradwire
