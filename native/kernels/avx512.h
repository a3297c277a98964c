// Words shared by the AVX-512 kernels; included by *_avx512.cc files alone.
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

// Floats to bfloat16: adds half of the kept unit, less one where the kept bits are even, and cuts; a NaN is cut and made quiet instead.
static inline __m256i bf16_of(const float* x) {
  const __m512i bits = load16_bits(x);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i raised = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __mmask16 nan = _mm512_cmpgt_epu32_mask(magnitude16(bits), _mm512_set1_epi32(kInfinityBits));
  const __m512i rounded = _mm512_srli_epi32(raised, 16);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40)));
}

// The hardware prefetcher stops at the end of a 4 KiB page; asking for the next page's lines keeps the memory busy
// while it starts again. Prefetching any address is harmless, so it is made from an integer, past the array's end too.
static inline void prefetch(const void* from, std::size_t ahead_nbytes) {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(from) + ahead_nbytes), _MM_HINT_T0);
}

}  // namespace gradwire
