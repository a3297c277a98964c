// CRC32C (Castagnoli, reflected polynomial 0x82F63B78), continuing from `seed`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

std::uint32_t crc32c_scalar(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed);
std::uint32_t crc32c_avx2(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed);
std::uint32_t crc32c_neon(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed);

}  // namespace gradwire
