// A message of several tensors in the format `pack`, one call for all, and how large they are on the same way through
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// n values, of which the most significant `bits` go to `out`, with room for what the format `pack` takes.
struct PackedTensor {
  const float* x;
  std::size_t n;
  std::uint8_t* out;
  int bits;
  bool summed;
};

// Packs all tensors. sums[i] becomes the sum of squares that sum_norms returns of tensor i where it is `summed`, else 0.
void pack_message(const Target& target, const PackedTensor* tensors, std::size_t count, double* sums, int threads);

}  // namespace gradwire
