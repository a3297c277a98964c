// `pack` for whole bytes, by byte shuffles, and the addition of whole floats; other widths use the portable kernel.
#include "kernels/pack.h"

#include "kernels/avx512.h"
#include "kernels/bits.h"

namespace gradwire {

namespace {

void pack8(const float* x, std::uint8_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(_mm512_srli_epi32(load16_bits(x), 24)));
}

__m512 unpack8(const std::uint8_t* packed) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 24));
}

void pack16(const float* x, std::uint8_t* out) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(_mm512_srli_epi32(load16_bits(x), 16)));
}

__m512 unpack16(const std::uint8_t* packed) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

// 16 values are 48 bytes, that is, twelve dwords. The masks keep loads and stores within the payload.
constexpr __mmask16 kTwelve = 0x0FFF;

// Three of four bytes are moved to the front of each 128-bit lane, then the lanes' three dwords are joined.
void pack24(const float* x, std::uint8_t* out) {
  const __m512i shuffle = _mm512_broadcast_i32x4(_mm_setr_epi8(1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, -1, -1, -1, -1));
  const __m512i gather = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 3, 3, 3);
  const __m512i lanes = _mm512_shuffle_epi8(load16_bits(x), shuffle);
  _mm512_mask_storeu_epi32(out, kTwelve, _mm512_permutexvar_epi32(gather, lanes));
}

__m512 unpack24(const std::uint8_t* packed) {
  const __m512i spread = _mm512_setr_epi32(0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 11, 11);
  const __m512i shuffle = _mm512_broadcast_i32x4(_mm_setr_epi8(-1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11));
  const __m512i lanes = _mm512_permutexvar_epi32(spread, _mm512_maskz_loadu_epi32(kTwelve, packed));
  return _mm512_castsi512_ps(_mm512_shuffle_epi8(lanes, shuffle));
}

struct Vectors {
  static constexpr std::size_t kStep = 16;

  template <std::size_t kBytes>
  static void pack(const float* x, std::uint8_t* out) {
    prefetch(x, 2048);
    if constexpr (kBytes == 1) pack8(x, out);
    if constexpr (kBytes == 2) pack16(x, out);
    if constexpr (kBytes == 3) pack24(x, out);
  }

  template <std::size_t kBytes, bool kAdd>
  static void unpack(const std::uint8_t* packed, float* out) {
    if constexpr (kBytes == 1) put16<kAdd>(out, unpack8(packed));
    if constexpr (kBytes == 2) put16<kAdd>(out, unpack16(packed));
    if constexpr (kBytes == 3) put16<kAdd>(out, unpack24(packed));
    if constexpr (kBytes == 4) put16<kAdd>(out, _mm512_loadu_ps(packed));
  }
};

bool has_nonfinite(const float* x, std::size_t n) {
  __m512i peak = _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) peak = _mm512_max_epu32(peak, magnitude16(load16_bits(x + i)));
  return _mm512_reduce_max_epu32(peak) >= kInfinityBits || kPackScalar.has_nonfinite(x + i, n - i);
}

}  // namespace

const PackKernels kPackAvx512 = {.pack = pack_by<Vectors>, .unpack = unpack_by<Vectors>, .has_nonfinite = has_nonfinite};

}  // namespace gradwire
