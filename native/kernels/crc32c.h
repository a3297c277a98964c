#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

std::uint32_t crc32c_scalar(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed);

}  // namespace gradwire
