// CRC32C (Castagnoli, reflected polynomial 0x82F63B78), continuing from `seed`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

std::uint32_t crc32c_scalar(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed);
std::uint32_t crc32c_avx2(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed);
// Uses VPCLMULQDQ, which not every processor with AVX-512 has; without it, crc32c_avx2.
std::uint32_t crc32c_avx512(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed);
std::uint32_t crc32c_neon(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed);

// Returns x^exponent modulo the polynomial, in reflected bit order.
static constexpr std::uint32_t power_of_x(std::size_t exponent) {
  std::uint32_t power = 0x80000000U;
  for (std::size_t i = 0; i < exponent; ++i) power = (power >> 1) ^ ((power & 1) != 0 ? 0x82F63B78U : 0U);
  return power;
}

}  // namespace gradwire
