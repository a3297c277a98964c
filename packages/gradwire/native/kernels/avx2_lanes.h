// A table of permutations of eight dwords, which replaces the compress and expand instructions of AVX-512.
#pragma once

#include "kernels/avx2.h"

namespace gradwire {

namespace {

// The permutations for each set of lanes: `gather` moves these lanes to the front, and `spread` moves them back.
struct Permutations {
  alignas(32) std::uint32_t gather[256][8];
  alignas(32) std::uint32_t spread[256][8];

  constexpr Permutations() : gather(), spread() {
    for (std::uint32_t set = 0; set < 256; ++set) {
      std::uint32_t count = 0;
      for (std::uint32_t lane = 0; lane < 8; ++lane) {
        if ((set >> lane & 1U) == 0) continue;
        gather[set][count] = lane;
        spread[set][lane] = count++;
      }
    }
  }
};

constexpr Permutations kPermutations;

__m256i gather_lanes(__m256i dwords, unsigned set) {
  return _mm256_permutevar8x32_epi32(dwords, load_vector(kPermutations.gather[set]));
}

__m256i spread_lanes(__m256i dwords, unsigned set) {
  return _mm256_permutevar8x32_epi32(dwords, load_vector(kPermutations.spread[set]));
}

// The lanes of a mask of dwords.
unsigned set_of(__m256i mask) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask))); }

// Dwords below 2^16 as words, in order.
__m128i narrow_to_words(__m256i dwords) {
  return _mm_packus_epi32(_mm256_castsi256_si128(dwords), _mm256_extracti128_si256(dwords, 1));
}

}  // namespace

}  // namespace gradwire
