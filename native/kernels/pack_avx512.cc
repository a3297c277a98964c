// `pack` with whole bytes kept, by byte shuffles, and sums of whole floats; other widths take the portable kernel.
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

// 16 values are 48 bytes: twelve dwords, which the masks keep within the payload.
constexpr __mmask16 kTwelve = 0x0FFF;

// Three of four bytes move to the front of each 128-bit lane, then the lanes' three dwords together.
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

__m512 unpack32(const std::uint8_t* packed) { return _mm512_loadu_ps(packed); }

template <void (*kPack)(const float*, std::uint8_t*)>
void pack_all(const float* x, std::size_t n, int bits, std::uint8_t* out) {
  const std::size_t step_nbytes = 2 * static_cast<std::size_t>(bits);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16, out += step_nbytes) {
    prefetch(x + i, 2048);
    kPack(x + i, out);
  }
  kPackScalar.pack(x + i, n - i, bits, out);
}

template <__m512 (*kUnpack)(const std::uint8_t*), bool kAdd>
void unpack_all(const std::uint8_t* packed, std::size_t n, int bits, float* out) {
  const std::size_t step_nbytes = 2 * static_cast<std::size_t>(bits);
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16, packed += step_nbytes) put16<kAdd>(out + i, kUnpack(packed));
  kPackScalar.unpack(packed, n - i, bits, out + i, kAdd);
}

void pack(const float* x, std::size_t n, int bits, std::uint8_t* out) {
  switch (bits) {
    case 8: return pack_all<pack8>(x, n, bits, out);
    case 16: return pack_all<pack16>(x, n, bits, out);
    case 24: return pack_all<pack24>(x, n, bits, out);
    default: return kPackScalar.pack(x, n, bits, out);
  }
}

template <bool kAdd>
void unpack_as(const std::uint8_t* packed, std::size_t n, int bits, float* out) {
  switch (bits) {
    case 8: return unpack_all<unpack8, kAdd>(packed, n, bits, out);
    case 16: return unpack_all<unpack16, kAdd>(packed, n, bits, out);
    case 24: return unpack_all<unpack24, kAdd>(packed, n, bits, out);
    case 32:
      if constexpr (kAdd) return unpack_all<unpack32, kAdd>(packed, n, bits, out);
      [[fallthrough]];  // a plain copy
    default: return kPackScalar.unpack(packed, n, bits, out, kAdd);
  }
}

void unpack(const std::uint8_t* packed, std::size_t n, int bits, float* out, bool add) {
  add ? unpack_as<true>(packed, n, bits, out) : unpack_as<false>(packed, n, bits, out);
}

bool has_nonfinite(const float* x, std::size_t n) {
  __m512i peak = _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) peak = _mm512_max_epu32(peak, magnitude16(load16_bits(x + i)));
  return _mm512_reduce_max_epu32(peak) >= kInfinityBits || kPackScalar.has_nonfinite(x + i, n - i);
}

}  // namespace

const PackKernels kPackAvx512 = {.pack = pack, .unpack = unpack, .has_nonfinite = has_nonfinite};

}  // namespace gradwire
