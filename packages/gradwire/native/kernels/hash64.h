// A 64-bit hash that detects different bytes on two machines. It doesn't protect against deliberate collisions.
//
// The bytes, padded with zeros to a multiple of 128, are stripes of 16 little-endian words, one for each lane. A lane
// is initialised to its number, and each word changes it to mix(lane ^ word). The hash is initialised to the number of
// bytes, and each lane, in order, changes it to mix(hash ^ lane). mix(x) = (x ^ x >> 32) * 0x9E3779B97F4A7C15 modulo
// 2^64 is bijective, so inputs that differ only in one lane's last word have different hashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradwire {

std::uint64_t hash64_scalar(const std::uint8_t* data, std::size_t nbytes);
std::uint64_t hash64_avx2(const std::uint8_t* data, std::size_t nbytes);
std::uint64_t hash64_avx512(const std::uint8_t* data, std::size_t nbytes);

namespace {

constexpr std::size_t kHashStripe = 128;
// Uses the compiler's vector types. A wider register of the machine holds several of them.
using HashWords = std::uint64_t __attribute__((vector_size(32)));

struct HashLanes {
  HashWords words[4];
};

// By reference, because without AVX, the ABI doesn't define how vectors are returned.
template <typename T>
void hash_mix(T& x) {
  x = (x ^ x >> 32) * 0x9E3779B97F4A7C15U;
}

[[maybe_unused]] void hash_stripe(HashLanes& lanes, const std::uint8_t* from) {
  HashLanes next;
  std::memcpy(&next, from, kHashStripe);
  for (std::size_t i = 0; i < 4; ++i) {
    lanes.words[i] ^= next.words[i];
    hash_mix(lanes.words[i]);
  }
}

[[maybe_unused]] std::uint64_t hash64_here(const std::uint8_t* data, std::size_t nbytes) {
  HashLanes lanes = {{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}};
  std::size_t i = 0;
  for (; i + kHashStripe <= nbytes; i += kHashStripe) hash_stripe(lanes, data + i);
  if (i < nbytes) {
    std::uint8_t rest[kHashStripe] = {};
    std::memcpy(rest, data + i, nbytes - i);
    hash_stripe(lanes, rest);
  }
  std::uint64_t words[16];
  std::memcpy(words, &lanes, sizeof words);
  std::uint64_t hash = nbytes;
  for (const std::uint64_t word : words) hash_mix(hash ^= word);
  return hash;
}

}  // namespace

}  // namespace gradwire
