// Kernels of `fp16` and `bf16`: two bytes a value, rounded to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct CastKernels {
  void (*to_fp16)(const float* x, std::size_t n, std::uint8_t* out);
  void (*from_fp16)(const std::uint8_t* payload, std::size_t n, float* out, bool add);
  void (*to_bf16)(const float* x, std::size_t n, std::uint8_t* out);
  void (*from_bf16)(const std::uint8_t* payload, std::size_t n, float* out, bool add);
};

extern const CastKernels kCastScalar;
extern const CastKernels kCastAvx2;
extern const CastKernels kCastAvx512;
extern const CastKernels kCastNeon;

}  // namespace gradwire
