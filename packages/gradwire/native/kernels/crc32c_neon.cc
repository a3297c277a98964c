// CRC32C by the crc32c instruction of Armv8. It uses one stream, because merging several takes instructions that fewer
// machines have.
#include <arm_acle.h>

#include "kernels/bits.h"
#include "kernels/crc32c.h"

namespace gradwire {

std::uint32_t crc32c_neon(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed) {
  std::uint32_t crc = ~seed;
  for (; nbytes >= 8; data += 8, nbytes -= 8) crc = __crc32cd(crc, load_word<std::uint64_t>(data));
  for (; nbytes > 0; ++data, --nbytes) crc = __crc32cb(crc, *data);
  return ~crc;
}

}  // namespace gradwire
