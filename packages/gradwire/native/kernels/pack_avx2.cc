// `pack` for whole bytes, by byte shuffles, and the addition of whole floats; other widths use the portable kernel.
#include "kernels/pack.h"

#include "kernels/avx2.h"
#include "kernels/bits.h"

namespace gradwire {

namespace {

// Each of these functions processes 32 values (128 bytes).

// An arithmetic shift, so that the saturating packs don't change any byte.
void pack8(const float* x, std::uint8_t* out) {
  const auto top = [&](int i) { return _mm256_srai_epi32(load_vector(x + 8 * i), 24); };
  store_vector(out, narrow_to_bytes(top(0), top(1), top(2), top(3)));
}

template <bool kAdd>
void unpack8(const std::uint8_t* packed, float* out) {
  for (int i = 0; i < 4; ++i) {
    const __m256i bytes = _mm256_cvtepu8_epi32(load_quarter(packed + 8 * i));
    put8<kAdd>(out + 8 * i, _mm256_castsi256_ps(_mm256_slli_epi32(bytes, 24)));
  }
}

void pack16(const float* x, std::uint8_t* out) {
  for (int i = 0; i < 2; ++i) {
    const __m256i low = _mm256_srli_epi32(load_vector(x + 16 * i), 16);
    const __m256i high = _mm256_srli_epi32(load_vector(x + 16 * i + 8), 16);
    store_vector(out + 32 * i, _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8));
  }
}

template <bool kAdd>
void unpack16(const std::uint8_t* packed, float* out) {
  for (int i = 0; i < 4; ++i) {
    const __m256i words = _mm256_cvtepu16_epi32(load_half(packed + 16 * i));
    put8<kAdd>(out + 8 * i, _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)));
  }
}

// Three of four bytes are moved to the front of each 128-bit lane, then the lanes' three dwords are joined: 24 bytes.
void pack24(const float* x, std::uint8_t* out) {
  const __m256i shuffle =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, -1, -1, -1, -1));
  const __m256i gather = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 3);
  for (int i = 0; i < 4; ++i) {
    const __m256i lanes = _mm256_shuffle_epi8(load_vector(x + 8 * i), shuffle);
    const __m256i bytes = _mm256_permutevar8x32_epi32(lanes, gather);
    store_half(out + 24 * i, _mm256_castsi256_si128(bytes));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 24 * i + 16), _mm256_extracti128_si256(bytes, 1));
  }
}

// The low lane gets bytes 0..11 of 24, and the high lane 12..23, which are loaded from 8, so that nothing past them is
// read.
template <bool kAdd>
void unpack24(const std::uint8_t* packed, float* out) {
  const __m256i shuffle = _mm256_setr_epi8(-1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11,  //
                                           -1, 4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15);
  for (int i = 0; i < 4; ++i) {
    const __m256i lanes = _mm256_set_m128i(load_half(packed + 24 * i + 8), load_half(packed + 24 * i));
    put8<kAdd>(out + 8 * i, _mm256_castsi256_ps(_mm256_shuffle_epi8(lanes, shuffle)));
  }
}

struct Vectors {
  static constexpr std::size_t kStep = 32;

  template <std::size_t kBytes>
  static void pack(const float* x, std::uint8_t* out) {
    prefetch(x, 2048);
    prefetch(x + 16, 2048);
    if constexpr (kBytes == 1) pack8(x, out);
    if constexpr (kBytes == 2) pack16(x, out);
    if constexpr (kBytes == 3) pack24(x, out);
  }

  template <std::size_t kBytes, bool kAdd>
  static void unpack(const std::uint8_t* packed, float* out) {
    if constexpr (kBytes == 1) unpack8<kAdd>(packed, out);
    if constexpr (kBytes == 2) unpack16<kAdd>(packed, out);
    if constexpr (kBytes == 3) unpack24<kAdd>(packed, out);
    if constexpr (kBytes == 4) {
      for (int i = 0; i < 4; ++i) put8<kAdd>(out + 8 * i, _mm256_castsi256_ps(load_vector(packed + 32 * i)));
    }
  }
};

bool has_nonfinite(const float* x, std::size_t n) {
  __m256i peak = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) peak = _mm256_max_epu32(peak, magnitude8(load_vector(x + i)));
  return largest_of(peak) >= kInfinityBits || kPackScalar.has_nonfinite(x + i, n - i);
}

}  // namespace

const PackKernels kPackAvx2 = {.pack = pack_by<Vectors>, .unpack = unpack_by<Vectors>, .has_nonfinite = has_nonfinite};

}  // namespace gradwire
