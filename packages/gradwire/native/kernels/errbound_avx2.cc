// `errbound`, eight values at a time, with AVX2 and BMI2.
#include <cfloat>
#include <cstring>

#include "kernels/avx2.h"
#include "kernels/errbound.h"
#include "kernels/flush_subnormals.h"
#include "kernels/quartet_tables.h"

namespace gradwire {

namespace {

constexpr std::size_t kPrefetchNbytes = 4096;  // measured, as in errbound_avx512.cc

unsigned sign_mask(__m256i lanes) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))); }

__m256i load_two(const void* low, const void* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(low)), load_half(high), 1);
}

std::size_t encode(const float* x, std::size_t n, const ErrboundScale& scale, std::uint8_t* tags,
                   std::uint8_t* data) {
  // Subnormal values and subnormal products have q = 0 under every bound, so they may be flushed. A subnormal factor
  // must be kept.
  const FlushSubnormals flush(scale.to_q >= FLT_MIN);
  const __m256 to_q = _mm256_set1_ps(scale.to_q);
  const __m256i limit1 = _mm256_set1_epi32(static_cast<int>(scale.limit1));
  const __m256i limit2 = _mm256_set1_epi32(static_cast<int>(scale.limit2));
  std::uint8_t* at = data;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    prefetch(x + i, kPrefetchNbytes);
    const __m256 value = _mm256_loadu_ps(x + i);
    // NaN and values outside of int32 become 0x80000000, whose absolute value is negative; the unsigned minimum handles
    // that.
    const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(value, to_q));
    const __m256i magnitude = _mm256_min_epu32(_mm256_abs_epi32(q), _mm256_set1_epi32(0x7FFFFFFF));
    const __m256i raw = _mm256_cmpgt_epi32(magnitude, limit2);
    const unsigned from1 = sign_mask(_mm256_cmpeq_epi32(q, _mm256_setzero_si256())) ^ 0xFFU;
    const unsigned from2 = sign_mask(_mm256_cmpgt_epi32(magnitude, limit1));
    const unsigned from3 = sign_mask(raw);
    const unsigned tag = _pdep_u32(from1 ^ from2 ^ from3, 0x5555U) | _pdep_u32(from2, 0xAAAAU);
    const auto stored_tag = static_cast<std::uint16_t>(tag);
    std::memcpy(tags + i / 4, &stored_tag, 2);

    const __m256i codes = _mm256_blendv_epi8(q, _mm256_castps_si256(value), raw);
    const __m256i packed =
        _mm256_shuffle_epi8(codes, load_two(kQuartets.gather[tag & 0xFF], kQuartets.gather[tag >> 8]));
    // Both stores end within 32 bytes of `at`, the worst case of eight values.
    store_half(at, _mm256_castsi256_si128(packed));
    at += kQuartets.nbytes[tag & 0xFF];
    store_half(at, _mm256_extracti128_si256(packed, 1));
    at += kQuartets.nbytes[tag >> 8];
  }
  at += kErrboundScalar.encode(x + i, n - i, scale, tags + i / 4, at);
  return static_cast<std::size_t>(at - data);
}

// Sums the sizes with a table for half tag bytes, 32 bytes at a time.
std::size_t count_data(const std::uint8_t* tags, std::size_t tags_nbytes) {
  const __m256i sizes =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 1, 2, 3, 5, 2, 3, 4, 6, 4, 5, 6, 8));
  const __m256i low_half = _mm256_set1_epi8(0x0F);
  __m256i sums = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 32 <= tags_nbytes; i += 32) {
    const __m256i tag = load_vector(tags + i);
    const __m256i low = _mm256_shuffle_epi8(sizes, _mm256_and_si256(tag, low_half));
    const __m256i high = _mm256_shuffle_epi8(sizes, _mm256_and_si256(_mm256_srli_epi16(tag, 4), low_half));
    sums = _mm256_add_epi64(sums, _mm256_sad_epu8(_mm256_add_epi8(low, high), _mm256_setzero_si256()));
  }
  std::uint64_t lanes[4];
  store_vector(lanes, sums);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3] + kErrboundScalar.count_data(tags + i, tags_nbytes - i);
}

struct Values {
  static constexpr std::size_t kStep = 8;
  static constexpr std::ptrdiff_t kReach = 32;  // the most that two loads of 16 bytes may read

  __m256 from_q;

  explicit Values(const ErrboundScale& scale) : from_q(_mm256_set1_ps(scale.from_q)) {}

  // The bytes are moved to the top of their lanes, and an arithmetic shift per lane moves them down with their sign.
  __m256 load(const std::uint8_t* from, const std::uint8_t*& data) const {
    const unsigned tags = load_word<std::uint16_t>(from);
    const std::uint8_t* const second = data + kQuartets.nbytes[tags & 0xFF];
    const __m256i bytes = load_two(data, second);
    data = second + kQuartets.nbytes[tags >> 8];

    const __m256i top =
        _mm256_shuffle_epi8(bytes, load_two(kQuartets.scatter[tags & 0xFF], kQuartets.scatter[tags >> 8]));
    const __m256i classes = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(tags)),
                                              _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    // vpermilps reads the two low bits of each lane, so the class needs no mask. Class 0 has zeros, so it may have any
    // shift except 0.
    const __m256i shifts = _mm256_castps_si256(_mm256_permutevar_ps(
        _mm256_castsi256_ps(_mm256_broadcastsi128_si256(_mm_setr_epi32(24, 24, 16, 0))), classes));
    const __m256 raw = _mm256_castsi256_ps(_mm256_cmpeq_epi32(shifts, _mm256_setzero_si256()));
    const __m256 values = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srav_epi32(top, shifts)), from_q);
    return _mm256_blendv_ps(values, _mm256_castsi256_ps(top), raw);
  }

  template <bool kAdd>
  void put(float* out, __m256 values) const {
    prefetch(out, kPrefetchNbytes);
    put8<kAdd>(out, values);
  }
};

struct Squares {
  __m256d sums[4] = {};
  __m256i nonfinite = _mm256_setzero_si256();

  void add(const float* x) {
    const __m256i infinity = _mm256_set1_epi32(kInfinityBits);
    prefetch(x, kPrefetchNbytes);
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256i raw = load_vector(x + 8 * half);
      const __m256i bad = _mm256_cmpeq_epi32(_mm256_and_si256(raw, infinity), infinity);
      const __m256 value = _mm256_castsi256_ps(_mm256_andnot_si256(bad, raw));
      const __m256d first = _mm256_cvtps_pd(_mm256_castps256_ps128(value));
      const __m256d second = _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));
      sums[2 * half] = _mm256_add_pd(sums[2 * half], _mm256_mul_pd(first, first));
      sums[2 * half + 1] = _mm256_add_pd(sums[2 * half + 1], _mm256_mul_pd(second, second));
      nonfinite = _mm256_sub_epi32(nonfinite, bad);
    }
  }

  std::size_t store(double* lanes) const {
    for (std::size_t k = 0; k < 4; ++k) _mm256_storeu_pd(lanes + 4 * k, sums[k]);
    std::uint32_t counts[8];
    store_vector(counts, nonfinite);
    std::size_t count = 0;
    for (const std::uint32_t each : counts) count += each;
    return count;
  }
};

}  // namespace

const ErrboundKernels kErrboundAvx2 = {
    .encode = encode,
    .count_data = count_data,
    .decode = errbound_decode<Values, false>,
    .decode_add = errbound_decode<Values, true>,
    .sum_squares = errbound_sum_squares<Squares>,
};

}  // namespace gradwire
