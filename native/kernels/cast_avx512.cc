// `fp16` by the conversion instructions, `bf16` by integer arithmetic.
#include "kernels/cast.h"

#include "kernels/avx512.h"
#include "kernels/bits.h"

namespace gradwire {

namespace {

__m256i fp16_of(const float* x) {
  return _mm512_cvtps_ph(_mm512_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

__m512 floats_of_fp16(__m256i halves) { return _mm512_cvtph_ps(halves); }

__m512 floats_of_bf16(__m256i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

template <__m256i (*kConvert)(const float*), auto kRest>
void to_two_bytes(const float* x, std::size_t n, std::uint8_t* out) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch(x + i, 2048);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2 * i), kConvert(x + i));
  }
  (kCastScalar.*kRest)(x + i, n - i, out + 2 * i);
}

template <__m512 (*kConvert)(__m256i), bool kAdd, auto kRest>
void from_two_bytes_as(const std::uint8_t* payload, std::size_t n, float* out) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    put16<kAdd>(out + i, kConvert(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(payload + 2 * i))));
  }
  (kCastScalar.*kRest)(payload + 2 * i, n - i, out + i, kAdd);
}

template <__m512 (*kConvert)(__m256i), auto kRest>
void from_two_bytes(const std::uint8_t* payload, std::size_t n, float* out, bool add) {
  add ? from_two_bytes_as<kConvert, true, kRest>(payload, n, out)
      : from_two_bytes_as<kConvert, false, kRest>(payload, n, out);
}

}  // namespace

const CastKernels kCastAvx512 = {
    .to_fp16 = to_two_bytes<fp16_of, &CastKernels::to_fp16>,
    .from_fp16 = from_two_bytes<floats_of_fp16, &CastKernels::from_fp16>,
    .to_bf16 = to_two_bytes<bf16_of, &CastKernels::to_bf16>,
    .from_bf16 = from_two_bytes<floats_of_bf16, &CastKernels::from_bf16>,
};

}  // namespace gradwire
