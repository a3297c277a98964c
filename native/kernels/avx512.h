// Words shared by the AVX-512 kernels; included by *_avx512.cc files alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace gradwire {

template <bool kAdd>
static inline void put16(float* out, __m512 values) {
  _mm512_storeu_ps(out, kAdd ? _mm512_add_ps(_mm512_loadu_ps(out), values) : values);
}

static inline __m512i load16_bits(const float* x) { return _mm512_loadu_si512(x); }

static inline __m512i magnitude16(__m512i bits) { return _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF)); }

// The hardware prefetcher stops at the end of a 4 KiB page; asking for the next page's lines keeps the memory busy
// while it starts again. Prefetching any address is harmless, so it is made from an integer, past the array's end too.
static inline void prefetch(const void* from, std::size_t ahead_nbytes) {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(from) + ahead_nbytes), _MM_HINT_T0);
}

}  // namespace gradwire
