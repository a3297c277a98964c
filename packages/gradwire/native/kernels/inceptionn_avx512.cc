// `inceptionn`, two bursts at a time, with AVX-512 F, BW, DQ, VL, and BMI2.
#include <cstring>

#include "kernels/avx512.h"
#include "kernels/burst_walk.h"
#include "kernels/inceptionn.h"
#include "kernels/quartet_tables.h"

namespace gradwire {

namespace {

constexpr std::size_t kPrefetchNbytes = 2048;  // measured: a fifth faster on arrays larger than the caches

__m128i load16(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

// Makes one vector of four 16-byte loads. Inserts from memory don't use the shuffle port.
__m512i load_four(const void* a, const void* b, const void* c, const void* d) {
  __m512i all = _mm512_castsi128_si512(load16(a));
  all = _mm512_inserti32x4(all, load16(b), 1);
  all = _mm512_inserti32x4(all, load16(c), 2);
  return _mm512_inserti32x4(all, load16(d), 3);
}

__m512i load_shuffles(const std::uint8_t (*table)[16], std::uint32_t tags) {
  return load_four(table[tags & 0xFF], table[(tags >> 8) & 0xFF], table[(tags >> 16) & 0xFF], table[tags >> 24]);
}

// Both stores of 16 bytes end within the 34 bytes of the largest burst.
std::uint8_t* store_burst(std::uint8_t* at, std::uint32_t tags, __m128i first, __m128i second) {
  const auto tag = static_cast<std::uint16_t>(tags);
  std::memcpy(at, &tag, 2);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 2), first);
  at += 2 + kQuartets.nbytes[tag & 0xFF];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), second);
  return at + kQuartets.nbytes[tag >> 8];
}

std::size_t encode(const float* x, std::size_t n, const InceptionnClasses& classes, std::uint8_t* out) {
  const auto all = [](std::uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); };
  const __m512i first1 = all(classes.first1);
  const __m512i first2 = all(classes.first2);
  const __m512i first3 = all(kInceptionnFirst3);
  const __m512i unit1 = all(classes.base + 16);
  std::uint8_t* at = out;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch(x + i, kPrefetchNbytes);
    const __m512i bits = load16_bits(x + i);
    const __m512i magnitude = magnitude16(bits);
    const __mmask16 from1 = _mm512_cmpge_epu32_mask(magnitude, first1);
    const __mmask16 from2 = _mm512_cmpge_epu32_mask(magnitude, first2);
    const __mmask16 from3 = _mm512_cmpge_epu32_mask(magnitude, first3);
    const std::uint32_t tags = _pdep_u32(static_cast<std::uint32_t>(from1 ^ from2 ^ from3), 0x55555555U) |
                               _pdep_u32(from2, 0xAAAAAAAAU);

    // Shift the 24 bits of the significand down to 7 or 15. A shift by more than 31 correctly gives 0.
    const __m512i significand = _mm512_ternarylogic_epi32(magnitude, all(0x7FFFFFU), all(0x800000U), 0xEA);  // a&b|c
    const __m512i unit = _mm512_mask_mov_epi32(unit1, from2, all(127 + 8));
    const __m512i fraction = _mm512_srlv_epi32(significand, _mm512_sub_epi32(unit, _mm512_srli_epi32(magnitude, 23)));
    const __m512i sign_shift = _mm512_mask_mov_epi32(all(24), from2, all(16));
    const __m512i sign = _mm512_srlv_epi32(_mm512_and_si512(bits, all(0x80000000U)), sign_shift);
    const __m512i codes = _mm512_mask_mov_epi32(_mm512_or_si512(fraction, sign), from3, bits);

    const __m512i packed = _mm512_shuffle_epi8(codes, load_shuffles(kQuartets.gather, tags));
    at = store_burst(at, tags, _mm512_castsi512_si128(packed), _mm512_extracti32x4_epi32(packed, 1));
    at = store_burst(at, tags >> 16, _mm512_extracti32x4_epi32(packed, 2), _mm512_extracti32x4_epi32(packed, 3));
  }
  at += kInceptionnScalar.encode(x + i, n - i, classes, at);
  return static_cast<std::size_t>(at - out);
}

// The loads of 16 bytes for two bursts reach at most the end of two bursts of the largest size.
constexpr std::ptrdiff_t kReach = 2 * kBurstMaxNbytes;

template <bool kAdd>
void decode(const std::uint8_t* payload, const std::uint8_t* end, const std::uint8_t* sizes, float* out,
            std::size_t n, const InceptionnClasses& classes) {
  // The payload bits are moved to the top of their lanes, where both classes' magnitudes are fractions of 2^31. The
  // scale of class 3 marks a raw lane. Class 0 has zeros, so it may have any other scale.
  const float shifted_unit1 = classes.unit1 * (1.0F / 16777216.0F);
  const float shifted_unit2 = kInceptionnUnit2 * (1.0F / 65536.0F);
  const __m512 scales = _mm512_broadcast_f32x4(_mm_setr_ps(1.0F, shifted_unit1, shifted_unit2, 0.0F));
  const __m512i lane_shift = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  std::size_t i = 0;
  for (; i + 16 <= n && end - payload >= kReach; i += 16) {
    prefetch(out + i, kPrefetchNbytes);
    std::uint16_t tags_low;
    std::memcpy(&tags_low, payload, 2);
    const std::uint8_t* const next = payload + sizes[0];
    std::uint16_t tags_high;
    std::memcpy(&tags_high, next, 2);
    const std::uint32_t tags = tags_low | static_cast<std::uint32_t>(tags_high) << 16;
    const __m512i bytes = load_four(payload + 2, payload + 2 + kQuartets.nbytes[tags_low & 0xFF], next + 2,
                                    next + 2 + kQuartets.nbytes[tags_high & 0xFF]);
    payload = next + sizes[1];
    sizes += 2;

    const __m512i top = _mm512_shuffle_epi8(bytes, load_shuffles(kQuartets.scatter, tags));
    // vpermilps reads the two low bits of each lane, so the class needs no mask.
    const __m512 scale = _mm512_permutevar_ps(
        scales, _mm512_srlv_epi32(_mm512_set1_epi32(static_cast<int>(tags)), lane_shift));
    const __mmask16 raw = _mm512_testn_epi32_mask(_mm512_castps_si512(scale), _mm512_castps_si512(scale));
    // The integer is negated, not the float, so that magnitude 0 stays +0.
    const __m512i magnitude = magnitude16(top);
    const __m512i integer =
        _mm512_mask_sub_epi32(magnitude, _mm512_movepi32_mask(top), _mm512_setzero_si512(), magnitude);
    const __m512 values = _mm512_mul_ps(_mm512_cvtepi32_ps(integer), scale);
    put16<kAdd>(out + i, _mm512_mask_mov_ps(values, raw, _mm512_castsi512_ps(top)));
  }
  const auto scalar = kAdd ? kInceptionnScalar.decode_add : kInceptionnScalar.decode;
  scalar(payload, end, sizes, out + i, n - i, classes);
}

}  // namespace

const InceptionnKernels kInceptionnAvx512 = {
    .encode = encode,
    .measure = measure_bursts,
    .decode = decode<false>,
    .decode_add = decode<true>,
};

}  // namespace gradwire
