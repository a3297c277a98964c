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

template <__m128i (*kTo)(const float*), __m256 (*kFrom)(__m128i)>
struct Cast {
  static constexpr std::size_t kEncoded = 16;
  static constexpr std::size_t kDecoded = 8;

  static void encode(const float* x, std::uint8_t* out) {
    prefetch(x, 2048);
    store_half(out, kTo(x));
    store_half(out + 16, kTo(x + 8));
  }

  template <bool kAdd>
  static void decode(const std::uint8_t* payload, float* out) {
    put8<kAdd>(out, kFrom(load_half(payload)));
  }
};

}  // namespace

const CastKernels kCastAvx2 = kCastKernelsOf<Cast<fp16_of, floats_of_fp16>, Cast<bf16_of, floats_of_bf16>>;

}  // namespace gradwire
