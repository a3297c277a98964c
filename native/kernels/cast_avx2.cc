// `fp16` by the conversion instructions, `bf16` by integer arithmetic.
#include "kernels/cast.h"

#include "kernels/avx2.h"
#include "kernels/bits.h"

namespace gradwire {

namespace {

__m128i fp16_of(const float* x) {
  return _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

__m256 floats_of_fp16(__m128i halves) { return _mm256_cvtph_ps(halves); }

__m256 floats_of_bf16(__m128i words) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}

template <__m128i (*kConvert)(const float*), auto kRest>
void to_two_bytes(const float* x, std::size_t n, std::uint8_t* out) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch(x + i, 2048);
    store_half(out + 2 * i, kConvert(x + i));
    store_half(out + 2 * i + 16, kConvert(x + i + 8));
  }
  (kCastScalar.*kRest)(x + i, n - i, out + 2 * i);
}

template <__m256 (*kConvert)(__m128i), bool kAdd, auto kRest>
void from_two_bytes_as(const std::uint8_t* payload, std::size_t n, float* out) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) put8<kAdd>(out + i, kConvert(load_half(payload + 2 * i)));
  (kCastScalar.*kRest)(payload + 2 * i, n - i, out + i, kAdd);
}

template <__m256 (*kConvert)(__m128i), auto kRest>
void from_two_bytes(const std::uint8_t* payload, std::size_t n, float* out, bool add) {
  add ? from_two_bytes_as<kConvert, true, kRest>(payload, n, out)
      : from_two_bytes_as<kConvert, false, kRest>(payload, n, out);
}

}  // namespace

const CastKernels kCastAvx2 = {
    .to_fp16 = to_two_bytes<fp16_of, &CastKernels::to_fp16>,
    .from_fp16 = from_two_bytes<floats_of_fp16, &CastKernels::from_fp16>,
    .to_bf16 = to_two_bytes<bf16_of, &CastKernels::to_bf16>,
    .from_bf16 = from_two_bytes<floats_of_bf16, &CastKernels::from_bf16>,
};

}  // namespace gradwire
