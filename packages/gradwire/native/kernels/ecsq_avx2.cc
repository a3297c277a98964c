// The codes of `ecsq`, for 32 values (encoding) or 16 (decoding) at a time, with AVX2 and BMI. Escapes are rare, so
// values with an escape are processed one by one.
#include "kernels/avx2.h"
#include "kernels/ecsq.h"

namespace gradwire {

namespace {

// Writes the escapes among 32 values, whose q are in order.
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

struct Codes {
  static constexpr std::size_t kEncoded = 32;
  static constexpr std::size_t kDecoded = 16;
  static constexpr std::size_t kCounted = 32;
  static constexpr std::size_t kWithFeet = 8;

  float each;
  __m256 factor;

  explicit Codes(float by) : each(by), factor(_mm256_set1_ps(by)) {}

  void to_codes(const float* x, std::uint8_t* codes, std::uint16_t*& escapes) const {
    const __m256i most = _mm256_set1_epi8(kFirstEscape - 1);
    __m256i q[4];
    for (int v = 0; v < 4; ++v) q[v] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * v), factor));
    __m256i bytes = narrow_to_bytes(q[0], q[1], q[2], q[3]);  // saturated, so that escapes are still detected
    const __m256i far = _mm256_cmpgt_epi8(_mm256_abs_epi8(_mm256_max_epi8(bytes, _mm256_set1_epi8(-127))), most);
    const auto which = static_cast<unsigned>(_mm256_movemask_epi8(far));
    if (which != 0) {
      escapes = store_escapes(q, which, escapes);
      bytes = _mm256_blendv_epi8(bytes, _mm256_set1_epi8(kFirstEscape), far);
    }
    store_half(codes, join_nibbles(bytes));
  }

  static std::size_t count(const std::uint8_t* codes, std::uint8_t nibble) {
    const __m256i low = _mm256_set1_epi8(0x0F);
    const __m256i wanted = _mm256_set1_epi8(static_cast<char>(nibble));
    const auto count_in = [](__m256i mask) {
      return static_cast<std::size_t>(__builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(mask))));
    };
    const __m256i bytes = load_vector(codes);
    return count_in(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, low), wanted)) +
           count_in(_mm256_cmpeq_epi8(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), low), wanted));
  }

  template <bool kAdd>
  void from_codes(const std::uint8_t* codes, const std::uint16_t*& escapes, float* out) const {
    const __m128i nibbles = split_nibbles(load_quarter(codes));
    if (_mm_movemask_epi8(_mm_cmpeq_epi8(nibbles, _mm_set1_epi8(kFirstEscape))) != 0) {
      escapes += kEcsqScalar.from_codes(codes, escapes, kDecoded, each, out, kAdd);
      return;
    }
    const __m128i bytes = extend_nibbles(nibbles);
    put8<kAdd>(out, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), factor));
    const __m256i second = _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8));
    put8<kAdd>(out + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(second), factor));
  }

  // Symbols are computed for all values, and those with q = 0 are selected one by one.
  void to_feet(const float* x, std::uint8_t*& feet) const {
    const __m256i sign = _mm256_set1_epi32(INT32_MIN);
    const __m256i value = _mm256_castps_si256(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
    const __m256i absolute = _mm256_andnot_si256(sign, value);
    const __m256 zero = _mm256_cmp_ps(_mm256_castsi256_ps(absolute), _mm256_set1_ps(0.5F), _CMP_LE_OQ);
    const __m256i rounded = _mm256_add_epi32(absolute, _mm256_set1_epi32(1 << (kFootShift - 1)));
    const __m256i magnitude = _mm256_srli_epi32(rounded, kFootShift);
    const __m256i there = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(kLastFoot - 1));
    const __m256i twice = _mm256_slli_epi32(magnitude, 1);
    const __m256i place = _mm256_sub_epi32(_mm256_set1_epi32(1 + 2 * kFirstFoot), twice);
    const __m256i symbols = _mm256_and_si256(there, _mm256_add_epi32(place, _mm256_srli_epi32(value, 31)));
    alignas(32) std::uint32_t symbol_of[kWithFeet];
    store_vector(symbol_of, symbols);
    for (auto which = static_cast<unsigned>(_mm256_movemask_ps(zero)); which != 0; which &= which - 1) {
      *feet++ = static_cast<std::uint8_t>(symbol_of[__builtin_ctz(which)]);
    }
  }
};

}  // namespace

const EcsqKernels kEcsqAvx2 = {
    .to_codes = ecsq_to_codes<Codes>,
    .count = ecsq_count_by<Codes>,
    .from_codes = ecsq_from_codes<Codes>,
    .to_feet = ecsq_to_feet<Codes>,
    .add_feet = ecsq_add_feet,
};

}  // namespace gradwire
