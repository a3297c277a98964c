// Walking inceptionn's bursts. A burst's start is known only when the tags of the one before have been read, so this is
// a chain of dependent loads: about ten cycles per burst, which sizes from bit counts keep as short as it can be.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradwire {

namespace {

// The size of class t is the number of bits set in t, in its high bit alone, and in both at once.
std::size_t burst_data_nbytes(unsigned tags) {
  return static_cast<std::size_t>(_mm_popcnt_u32(tags) + _mm_popcnt_u32(tags & 0xAAAAU) +
                                  _mm_popcnt_u32(tags & (tags >> 1) & 0x5555U));
}

std::size_t skip_bursts(const std::uint8_t* payload, std::size_t nbytes, std::size_t position, std::size_t bursts) {
  while (bursts >= 4 && position + 8 <= nbytes) {
    std::uint64_t ahead;
    std::memcpy(&ahead, payload + position, 8);
    if (ahead == 0) {  // four bursts of zeros; the predicted branch also cuts the chain
      position += 8;
      bursts -= 4;
    } else {
      position += 2 + burst_data_nbytes(static_cast<unsigned>(ahead & 0xFFFFU));
      --bursts;
    }
  }
  for (; bursts > 0; --bursts) {
    if (position + 2 > nbytes) return nbytes + 1;
    std::uint16_t tags;
    std::memcpy(&tags, payload + position, 2);
    position += 2 + burst_data_nbytes(tags);
  }
  return position;
}

}  // namespace

}  // namespace gradwire
