// The codes of `ecsq`, 32 values (encoding) or 16 at a time. AVX2 and BMI. Escapes are rare: the values with one are
// looked at one by one.
#include "kernels/avx2.h"
#include "kernels/ecsq.h"

namespace gradwire {

namespace {

// Writes the escapes among 32 values; their q are all there, in order.
std::uint16_t* store_escapes(const __m256i (&q)[4], unsigned which, std::uint16_t* at) {
  alignas(32) std::int32_t values[32];
  for (int v = 0; v < 4; ++v) store_vector(values + 8 * v, q[v]);
  for (; which != 0; which &= which - 1) {
    const std::int32_t value = values[__builtin_ctz(which)];
    const std::int32_t magnitude = value < 0 ? -value : value;
    *at++ = static_cast<std::uint16_t>(2 * (magnitude - kFirstEscape) + (value < 0 ? 1 : 0));
  }
  return at;
}

std::size_t to_codes(const float* x, std::size_t n, float inverse, std::uint8_t* codes, std::uint16_t* escapes) {
  const __m256 factor = _mm256_set1_ps(inverse);
  const __m256i most = _mm256_set1_epi8(kFirstEscape - 1);
  std::uint16_t* at = escapes;
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i q[4];
    for (int v = 0; v < 4; ++v) {
      q[v] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8 * v), factor));
    }
    __m256i bytes = narrow_to_bytes(q[0], q[1], q[2], q[3]);  // saturated, so that escapes are still seen
    const __m256i far = _mm256_cmpgt_epi8(_mm256_abs_epi8(_mm256_max_epi8(bytes, _mm256_set1_epi8(-127))), most);
    const auto which = static_cast<unsigned>(_mm256_movemask_epi8(far));
    if (which != 0) {
      at = store_escapes(q, which, at);
      bytes = _mm256_blendv_epi8(bytes, _mm256_set1_epi8(kFirstEscape), far);
    }
    // See kernels/quantize_avx2.cc.
    const __m256i nibbles = _mm256_and_si256(bytes, _mm256_set1_epi8(0x0F));
    const __m256i pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0xD8);
    store_half(codes + i / 2, _mm256_castsi256_si128(packed));
  }
  at += kEcsqScalar.to_codes(x + i, n - i, inverse, codes + i / 2, at);
  return static_cast<std::size_t>(at - escapes);
}

std::size_t count(const std::uint8_t* codes, std::size_t nbytes, std::uint8_t nibble) {
  const __m256i low = _mm256_set1_epi8(0x0F);
  const __m256i wanted = _mm256_set1_epi8(static_cast<char>(nibble));
  const auto count_in = [](__m256i mask) {
    return static_cast<std::size_t>(__builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(mask))));
  };
  std::size_t found = 0;
  std::size_t i = 0;
  for (; i + 32 <= nbytes; i += 32) {
    const __m256i bytes = load_vector(codes + i);
    found += count_in(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, low), wanted));
    found += count_in(_mm256_cmpeq_epi8(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), low), wanted));
  }
  return found + ecsq_count(codes + i, nbytes - i, nibble);
}

template <bool kAdd>
std::size_t from_codes_as(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale,
                          float* out) {
  const __m256 factor = _mm256_set1_ps(scale);
  const __m128i eight = _mm_set1_epi8(8);
  const std::uint16_t* at = escapes;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    // See kernels/quantize_avx2.cc.
    const __m128i words = _mm_cvtepu8_epi16(load_quarter(codes + i / 2));
    const __m128i nibbles = _mm_and_si128(_mm_or_si128(words, _mm_slli_epi16(words, 4)), _mm_set1_epi8(0x0F));
    if (_mm_movemask_epi8(_mm_cmpeq_epi8(nibbles, eight)) != 0) {
      at += kEcsqScalar.from_codes(codes + i / 2, at, 16, scale, out + i, kAdd);
      continue;
    }
    const __m128i bytes = _mm_sub_epi8(_mm_xor_si128(nibbles, eight), eight);
    put8<kAdd>(out + i, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), factor));
    const __m256i second = _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8));
    put8<kAdd>(out + i + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(second), factor));
  }
  at += kEcsqScalar.from_codes(codes + i / 2, at, n - i, scale, out + i, kAdd);
  return static_cast<std::size_t>(at - escapes);
}

std::size_t from_codes(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale, float* out,
                       bool add) {
  return add ? from_codes_as<true>(codes, escapes, n, scale, out) : from_codes_as<false>(codes, escapes, n, scale, out);
}

// Vectors make the symbols of all values; those with q = 0 are picked one by one.
std::size_t to_feet(const float* x, std::size_t n, float inverse, std::uint8_t* feet) {
  const __m256 factor = _mm256_set1_ps(inverse);
  const __m256i sign = _mm256_set1_epi32(INT32_MIN);
  std::uint8_t* at = feet;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i value = _mm256_castps_si256(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
    const __m256i absolute = _mm256_andnot_si256(sign, value);
    const __m256 zero = _mm256_cmp_ps(_mm256_castsi256_ps(absolute), _mm256_set1_ps(0.5F), _CMP_LE_OQ);
    const __m256i rounded = _mm256_add_epi32(absolute, _mm256_set1_epi32(1 << (kFootShift - 1)));
    const __m256i magnitude = _mm256_srli_epi32(rounded, kFootShift);
    const __m256i there = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kLastFoot - 1));
    const __m256i twice = _mm256_slli_epi32(magnitude, 1);
    const __m256i place = _mm256_sub_epi32(_mm256_set1_epi32(1 + 2 * kFirstFoot), twice);
    const __m256i symbols = _mm256_and_si256(there, _mm256_add_epi32(place, _mm256_srli_epi32(value, 31)));
    alignas(32) std::uint32_t each[8];
    store_vector(each, symbols);
    for (auto which = static_cast<unsigned>(_mm256_movemask_ps(zero)); which != 0; which &= which - 1) {
      *at++ = static_cast<std::uint8_t>(each[__builtin_ctz(which)]);
    }
  }
  at += kEcsqScalar.to_feet(x + i, n - i, inverse, at);
  return static_cast<std::size_t>(at - feet);
}

std::size_t add_feet(const std::uint8_t* codes, const std::uint8_t* feet, std::size_t n, float scale, float* out) {
  return kEcsqScalar.add_feet(codes, feet, n, scale, out);
}

}  // namespace

const EcsqKernels kEcsqAvx2 = {
    .to_codes = to_codes,
    .count = count,
    .from_codes = from_codes,
    .to_feet = to_feet,
    .add_feet = add_feet,
};

}  // namespace gradwire
