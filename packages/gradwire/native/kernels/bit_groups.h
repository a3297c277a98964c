// Eight k-bit values as k whole bytes, little-endian without gaps. The width is a template argument, so that every
// shift is a constant and the loops are unrolled. Kernels select the width once, from a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradwire {

inline constexpr std::size_t kGroup = 8;

// The values must be below 2^kBits.
template <int kBits>
static inline void pack_group(const std::uint32_t* values, std::uint8_t* out) {
  std::uint64_t words[5] = {};  // 256 bits at most; the fifth word is addressed, but never used
  for (int i = 0; i < 8; ++i) {
    const int word = i * kBits / 64;
    const int shift = i * kBits % 64;
    words[word] |= static_cast<std::uint64_t>(values[i]) << shift;
    if (shift + kBits > 64) words[word + 1] |= static_cast<std::uint64_t>(values[i]) >> (64 - shift);
  }
  std::memcpy(out, words, kBits);
}

template <int kBits>
static inline void unpack_group(const std::uint8_t* packed, std::uint32_t* values) {
  std::uint64_t words[5] = {};
  std::memcpy(words, packed, kBits);
  for (int i = 0; i < 8; ++i) {
    const int word = i * kBits / 64;
    const int shift = i * kBits % 64;
    std::uint64_t value = words[word] >> shift;
    if (shift + kBits > 64) value |= words[word + 1] << (64 - shift);
    values[i] = static_cast<std::uint32_t>(value & ((std::uint64_t{1} << kBits) - 1));
  }
}

}  // namespace gradwire
