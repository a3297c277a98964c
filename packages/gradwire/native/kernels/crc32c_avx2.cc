// CRC32C by the crc32 instruction. It takes 3 cycles, but one can start in every cycle, so three streams are processed
// at once and then merged (Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", 2011).
#include "kernels/crc32c.h"

#include <immintrin.h>

#include "kernels/avx2.h"
#include "kernels/bits.h"

namespace gradwire {

namespace {

// Returns the CRC after nbytes more zero bytes, that is crc * x^(8 nbytes). The carry-less product of two reflected
// words has an additional factor x, and its reduction by the crc32 instruction multiplies by x^32, hence the 33.
template <std::size_t kNbytes>
std::uint64_t shift(std::uint64_t crc) {
  constexpr std::uint32_t kFactor = power_of_x(8 * kNbytes - 33);
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(crc)),
                                               _mm_cvtsi32_si128(static_cast<int>(kFactor)), 0);
  return _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
}

// Processes runs of three streams of kNbytes each.
template <std::size_t kNbytes>
std::uint64_t run_streams(const std::uint8_t*& data, std::size_t& nbytes, std::uint64_t crc) {
  while (nbytes >= 3 * kNbytes) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kNbytes; i += 8) {
      if (i % 64 == 0) {  // three short streams start too often for the hardware prefetcher
        for (std::size_t stream = 0; stream < 3; ++stream) prefetch(data + stream * kNbytes + i, 3 * kNbytes);
      }
      crc = _mm_crc32_u64(crc, load_word<std::uint64_t>(data + i));
      second = _mm_crc32_u64(second, load_word<std::uint64_t>(data + kNbytes + i));
      third = _mm_crc32_u64(third, load_word<std::uint64_t>(data + 2 * kNbytes + i));
    }
    crc = shift<2 * kNbytes>(crc) ^ shift<kNbytes>(second) ^ third;
    data += 3 * kNbytes;
    nbytes -= 3 * kNbytes;
  }
  return crc;
}

}  // namespace

std::uint32_t crc32c_avx2(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed) {
  std::uint64_t crc = ~seed;
  crc = run_streams<2048>(data, nbytes, crc);
  crc = run_streams<128>(data, nbytes, crc);
  for (; nbytes >= 8; data += 8, nbytes -= 8) crc = _mm_crc32_u64(crc, load_word<std::uint64_t>(data));
  auto last = static_cast<std::uint32_t>(crc);
  for (; nbytes > 0; ++data, --nbytes) last = _mm_crc32_u8(last, *data);
  return ~last;
}

}  // namespace gradwire
