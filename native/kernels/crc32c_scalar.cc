// CRC32C by a table of 256 entries, made at compile time from the reflected polynomial.
#include <array>

#include "kernels/crc32c.h"

namespace gradwire {

namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
    table[byte] = crc;
  }
  return table;
}

constexpr auto kTable = make_table();

}  // namespace

std::uint32_t crc32c_scalar(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed) {
  std::uint32_t crc = ~seed;
  for (std::size_t i = 0; i < nbytes; ++i) crc = (crc >> 8) ^ kTable[(crc ^ data[i]) & 0xFF];
  return ~crc;
}

}  // namespace gradwire
