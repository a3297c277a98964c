// A message of several tensors in the format `pack`, packed by one call, which also sums their squares in the same pass
// over memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// n values whose most significant `bits` are written to `out`, which has room for the payload of the format `pack`.
struct PackedTensor {
  const float* x;
  std::size_t n;
  std::uint8_t* out;
  int bits;
  bool summed;
};

// Packs all tensors. sums[i] becomes the sum of squares of tensor i, as returned by sum_norms, if it is `summed`, else
// 0.
void pack_message(const Target& target, const PackedTensor* tensors, std::size_t count, double* sums, int threads);

}  // namespace gradwire
