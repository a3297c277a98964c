// Kernels of `fp16` and `bf16`: two bytes per value, rounded to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/walk.h"

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

namespace {

// A target has a Cast for each format. encode(x, out) encodes kEncoded values, and decode<kAdd>(payload, out) decodes
// kDecoded values.
template <typename Cast, auto kRest>
void cast_to(const float* x, std::size_t n, std::uint8_t* out) {
  const std::size_t i = walk<Cast::kEncoded>(n, [&](std::size_t at) { Cast::encode(x + at, out + 2 * at); });
  (kCastScalar.*kRest)(x + i, n - i, out + 2 * i);
}

template <typename Cast, auto kRest>
void cast_from(const std::uint8_t* payload, std::size_t n, float* out, bool add) {
  const std::size_t i = choose(add, [&](auto chosen) {
    return walk<Cast::kDecoded>(n, [&](std::size_t at) {
      Cast::template decode<decltype(chosen)::value>(payload + 2 * at, out + at);
    });
  });
  (kCastScalar.*kRest)(payload + 2 * i, n - i, out + i, add);
}

template <typename Fp16, typename Bf16>
constexpr CastKernels kCastKernelsOf = {
    .to_fp16 = cast_to<Fp16, &CastKernels::to_fp16>,
    .from_fp16 = cast_from<Fp16, &CastKernels::from_fp16>,
    .to_bf16 = cast_to<Bf16, &CastKernels::to_bf16>,
    .from_bf16 = cast_from<Bf16, &CastKernels::from_bf16>,
};

}  // namespace

}  // namespace gradwire
