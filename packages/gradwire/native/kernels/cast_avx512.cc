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

template <__m256i (*kTo)(const float*), __m512 (*kFrom)(__m256i)>
struct Cast {
  static constexpr std::size_t kEncoded = 16;
  static constexpr std::size_t kDecoded = 16;

  static void encode(const float* x, std::uint8_t* out) {
    prefetch(x, 2048);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), kTo(x));
  }

  template <bool kAdd>
  static void decode(const std::uint8_t* payload, float* out) {
    put16<kAdd>(out, kFrom(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(payload))));
  }
};

}  // namespace

const CastKernels kCastAvx512 = kCastKernelsOf<Cast<fp16_of, floats_of_fp16>, Cast<bf16_of, floats_of_bf16>>;

}  // namespace gradwire
