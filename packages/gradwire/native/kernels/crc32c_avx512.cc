// CRC32C by carry-less products of 64 bytes. The contents of four registers are multiplied by the power of x that
// shifts them by 256 bytes, and added to the bytes there (Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction", 2009).
#include <immintrin.h>

#include "gradwire/target.h"
#include "kernels/avx512.h"
#include "kernels/crc32c.h"

namespace gradwire {

namespace {

constexpr std::size_t kAtOnce = 256;

// Returns the factors that shift the low and the high half of 16 bytes by `nbytes`. Products of reflected words have an
// additional factor x, so the powers are smaller by one.
template <std::size_t kNbytes>
__m128i factors() {
  constexpr std::uint64_t kLow = std::uint64_t{power_of_x(8 * kNbytes + 32)} << 1;
  constexpr std::uint64_t kHigh = std::uint64_t{power_of_x(8 * kNbytes - 32)} << 1;
  return _mm_set_epi64x(static_cast<long long>(kHigh), static_cast<long long>(kLow));
}

template <std::size_t kNbytes>
__m512i moved(__m512i x) {
  const __m512i by = _mm512_broadcast_i64x2(factors<kNbytes>());
  return _mm512_xor_si512(_mm512_clmulepi64_epi128(x, by, 0x00), _mm512_clmulepi64_epi128(x, by, 0x11));
}

__m128i moved16(__m128i x) {
  const __m128i by = factors<16>();
  return _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11));
}

__m512i load64(const std::uint8_t* data) { return _mm512_loadu_si512(data); }

// Processes all whole runs of 64 bytes, at least four, and returns the CRC register.
std::uint32_t fold(const std::uint8_t*& data, std::size_t& nbytes, std::uint32_t crc) {
  __m512i sums[4];
  for (std::size_t i = 0; i < 4; ++i) sums[i] = load64(data + 64 * i);
  sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  for (data += kAtOnce, nbytes -= kAtOnce; nbytes >= kAtOnce; data += kAtOnce, nbytes -= kAtOnce) {
    for (std::size_t i = 0; i < 4; ++i) {
      prefetch(data + 64 * i, 8 * kAtOnce);
      sums[i] = _mm512_xor_si512(moved<kAtOnce>(sums[i]), load64(data + 64 * i));
    }
  }
  __m512i sum = sums[0];
  for (std::size_t i = 1; i < 4; ++i) sum = _mm512_xor_si512(moved<64>(sum), sums[i]);
  for (; nbytes >= 64; data += 64, nbytes -= 64) sum = _mm512_xor_si512(moved<64>(sum), load64(data));
  __m128i last = _mm512_extracti32x4_epi32(sum, 0);
  last = _mm_xor_si128(moved16(last), _mm512_extracti32x4_epi32(sum, 1));
  last = _mm_xor_si128(moved16(last), _mm512_extracti32x4_epi32(sum, 2));
  last = _mm_xor_si128(moved16(last), _mm512_extracti32x4_epi32(sum, 3));
  const std::uint64_t first = _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(last)));
  return static_cast<std::uint32_t>(_mm_crc32_u64(first, static_cast<std::uint64_t>(_mm_extract_epi64(last, 1))));
}

}  // namespace

std::uint32_t crc32c_avx512(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed) {
  if (nbytes >= kAtOnce && cpu_multiplies_vectors()) seed = ~fold(data, nbytes, ~seed);
  return crc32c_avx2(data, nbytes, seed);
}

}  // namespace gradwire
