// CRC32C of eight bytes at a time, by eight tables of 256 entries ("slicing by 8": table k has the CRC of each byte
// followed by k zero bytes), computed from the polynomial at compile time. It requires a little-endian machine, like
// the formats.
#include "kernels/crc32c.h"

#include <array>

#include "kernels/bits.h"

namespace gradwire {

namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32c_scalar(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed) {
  std::uint32_t crc = ~seed;
  for (; nbytes >= 8; data += 8, nbytes -= 8) {
    const std::uint64_t word = load_word<std::uint64_t>(data) ^ crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][word >> 8 * i & 0xFF];
  }
  for (; nbytes > 0; ++data, --nbytes) crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 0xFF];
  return ~crc;
}

}  // namespace gradwire
