// `inceptionn`, one burst at a time, with AVX2 and BMI2.
#include <cstring>

#include "kernels/avx2.h"
#include "kernels/burst_walk.h"
#include "kernels/inceptionn.h"
#include "kernels/quartet_tables.h"

namespace gradwire {

namespace {

constexpr std::size_t kPrefetchNbytes = 2048;  // measured, as in inceptionn_avx512.cc

unsigned sign_mask(__m256i lanes) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))); }

__m256i load_two(const void* low, const void* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(low)), load_half(high), 1);
}

std::size_t encode(const float* x, std::size_t n, const InceptionnClasses& classes, std::uint8_t* out) {
  const auto all = [](std::uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); };
  const __m256i below1 = all(classes.first1 - 1);
  const __m256i below2 = all(classes.first2 - 1);
  const __m256i below3 = all(kInceptionnFirst3 - 1);
  const __m256i unit1 = all(classes.base + 16);
  std::uint8_t* at = out;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    prefetch(x + i, kPrefetchNbytes);
    const __m256i bits = load_vector(x + i);
    const __m256i magnitude = magnitude8(bits);
    const __m256i from2 = _mm256_cmpgt_epi32(magnitude, below2);
    const __m256i from3 = _mm256_cmpgt_epi32(magnitude, below3);
    const unsigned mask1 = sign_mask(_mm256_cmpgt_epi32(magnitude, below1));
    const unsigned mask2 = sign_mask(from2);
    const unsigned tags = _pdep_u32(mask1 ^ mask2 ^ sign_mask(from3), 0x5555U) | _pdep_u32(mask2, 0xAAAAU);

    // Shift the 24 bits of the significand down to 7 or 15. A shift by more than 31 correctly gives 0.
    const __m256i significand = _mm256_or_si256(_mm256_and_si256(magnitude, all(0x7FFFFFU)), all(0x800000U));
    const __m256i unit = _mm256_blendv_epi8(unit1, all(127 + 8), from2);
    const __m256i fraction = _mm256_srlv_epi32(significand, _mm256_sub_epi32(unit, _mm256_srli_epi32(magnitude, 23)));
    const __m256i sign_shift = _mm256_add_epi32(all(24), _mm256_and_si256(from2, all(0xFFFFFFF8U)));  // 24 or 16
    const __m256i sign = _mm256_srlv_epi32(_mm256_and_si256(bits, all(0x80000000U)), sign_shift);
    const __m256i codes = _mm256_blendv_epi8(_mm256_or_si256(fraction, sign), bits, from3);

    const __m256i packed =
        _mm256_shuffle_epi8(codes, load_two(kQuartets.gather[tags & 0xFF], kQuartets.gather[tags >> 8]));
    const auto stored_tags = static_cast<std::uint16_t>(tags);
    std::memcpy(at, &stored_tags, 2);
    // Both stores end within the 34 bytes of the largest burst.
    store_half(at + 2, _mm256_castsi256_si128(packed));
    at += 2 + kQuartets.nbytes[tags & 0xFF];
    store_half(at, _mm256_extracti128_si256(packed, 1));
    at += kQuartets.nbytes[tags >> 8];
  }
  at += kInceptionnScalar.encode(x + i, n - i, classes, at);
  return static_cast<std::size_t>(at - out);
}

template <bool kAdd>
void decode(const std::uint8_t* payload, const std::uint8_t* end, const std::uint8_t* sizes, float* out,
            std::size_t n, const InceptionnClasses& classes) {
  // The payload bits are moved to the top of their lanes, where both classes' magnitudes are fractions of 2^31. The
  // scale of class 3 marks a raw lane. Class 0 has zeros, so it may have any other scale.
  const float shifted_unit1 = classes.unit1 * (1.0F / 16777216.0F);
  const float shifted_unit2 = kInceptionnUnit2 * (1.0F / 65536.0F);
  const __m128 four_scales = _mm_setr_ps(1.0F, shifted_unit1, shifted_unit2, 0.0F);
  const __m256 scales = _mm256_set_m128(four_scales, four_scales);
  std::size_t i = 0;
  // Loads of 16 bytes reach at most the end of a burst of the largest size.
  for (; i + 8 <= n && end - payload >= static_cast<std::ptrdiff_t>(kBurstMaxNbytes); i += 8) {
    prefetch(out + i, kPrefetchNbytes);
    std::uint16_t tags;
    std::memcpy(&tags, payload, 2);
    const __m256i bytes = load_two(payload + 2, payload + 2 + kQuartets.nbytes[tags & 0xFF]);
    payload += *sizes++;

    const __m256i top =
        _mm256_shuffle_epi8(bytes, load_two(kQuartets.scatter[tags & 0xFF], kQuartets.scatter[tags >> 8]));
    // vpermilps reads the two low bits of each lane, so the class needs no mask.
    const __m256 scale = _mm256_permutevar_ps(
        scales, _mm256_srlv_epi32(_mm256_set1_epi32(tags), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)));
    const __m256i raw = _mm256_cmpeq_epi32(_mm256_castps_si256(scale), _mm256_setzero_si256());
    // The integer is negated, not the float, so that magnitude 0 stays +0.
    const __m256i magnitude = magnitude8(top);
    const __m256 unscaled = _mm256_cvtepi32_ps(_mm256_sign_epi32(magnitude, top));
    const __m256 values = _mm256_mul_ps(unscaled, scale);
    put8<kAdd>(out + i, _mm256_blendv_ps(values, _mm256_castsi256_ps(top), _mm256_castsi256_ps(raw)));
  }
  const auto scalar = kAdd ? kInceptionnScalar.decode_add : kInceptionnScalar.decode;
  scalar(payload, end, sizes, out + i, n - i, classes);
}

}  // namespace

const InceptionnKernels kInceptionnAvx2 = {
    .encode = encode,
    .measure = measure_bursts,
    .decode = decode<false>,
    .decode_add = decode<true>,
};

}  // namespace gradwire
