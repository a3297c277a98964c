// Kernels of `pack`: keep the k most significant bits of every float, packed little-endian without gaps.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct PackKernels {
  // Writes exactly ceil(n * bits / 8) bytes; `bits` is 1..32.
  void (*pack)(const float* x, std::size_t n, int bits, std::uint8_t* out);
  // Reads exactly those bytes; the dropped bits come back as zeros.
  void (*unpack)(const std::uint8_t* packed, std::size_t n, int bits, float* out, bool add);
  // Whether an infinity or a NaN is among the values.
  bool (*has_nonfinite)(const float* x, std::size_t n);
};

extern const PackKernels kPackScalar;
extern const PackKernels kPackAvx2;
extern const PackKernels kPackAvx512;
extern const PackKernels kPackNeon;

}  // namespace gradwire
