// `errbound`, sixteen values at a time, with AVX-512 F, BW, DQ, VL, and BMI2. Without VBMI, bytes are compacted by a
// table, four values at a time.
#include <cfloat>
#include <cstring>

#include "kernels/avx512.h"
#include "kernels/errbound.h"
#include "kernels/flush_subnormals.h"
#include "kernels/quartet_tables.h"

namespace gradwire {

namespace {

constexpr std::uint32_t kLowBits = 0x55555555U;   // the low bit of each 2-bit class
constexpr std::uint32_t kHighBits = 0xAAAAAAAAU;  // the high bit
constexpr std::size_t kPrefetchNbytes = 4096;     // measured: a quarter faster on arrays larger than the caches

// Makes one vector of four 16-byte loads. Inserts from memory don't use the shuffle port.
__m512i load_four(const void* a, const void* b, const void* c, const void* d) {
  const auto load = [](const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); };
  __m512i all = _mm512_castsi128_si512(load(a));
  all = _mm512_inserti32x4(all, load(b), 1);
  all = _mm512_inserti32x4(all, load(c), 2);
  return _mm512_inserti32x4(all, load(d), 3);
}

__m512i load_shuffles(const std::uint8_t (*table)[16], std::uint32_t tags) {
  return load_four(table[tags & 0xFF], table[(tags >> 8) & 0xFF], table[(tags >> 16) & 0xFF], table[tags >> 24]);
}

// Each store covers 16 bytes, so the four end within 64 bytes of `at`, the worst case of sixteen values.
std::uint8_t* store_packed(__m512i codes, std::uint32_t tags, std::uint8_t* at) {
  const __m512i packed = _mm512_shuffle_epi8(codes, load_shuffles(kQuartets.gather, tags));
  const auto store = [](std::uint8_t* to, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value); };
  store(at, _mm512_castsi512_si128(packed));
  at += kQuartets.nbytes[tags & 0xFF];
  store(at, _mm512_extracti32x4_epi32(packed, 1));
  at += kQuartets.nbytes[(tags >> 8) & 0xFF];
  store(at, _mm512_extracti32x4_epi32(packed, 2));
  at += kQuartets.nbytes[(tags >> 16) & 0xFF];
  store(at, _mm512_extracti32x4_epi32(packed, 3));
  return at + kQuartets.nbytes[tags >> 24];
}

std::size_t encode(const float* x, std::size_t n, const ErrboundScale& scale, std::uint8_t* tags,
                   std::uint8_t* data) {
  // Subnormal values and subnormal products have q = 0 under every bound, so they may be flushed. A subnormal factor
  // must be kept.
  const FlushSubnormals flush(scale.to_q >= FLT_MIN);
  const __m512 to_q = _mm512_set1_ps(scale.to_q);
  const __m512i limit1 = _mm512_set1_epi32(static_cast<int>(scale.limit1));
  const __m512i limit2 = _mm512_set1_epi32(static_cast<int>(scale.limit2));
  std::uint8_t* at = data;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch(x + i, kPrefetchNbytes);
    const __m512 value = _mm512_loadu_ps(x + i);
    // NaN and values outside of int32 become 0x80000000, whose absolute value as an unsigned number is above all
    // limits.
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(value, to_q));
    const __m512i magnitude = _mm512_abs_epi32(q);
    const std::uint32_t from1 = _mm512_test_epi32_mask(q, q);
    const std::uint32_t from2 = _mm512_cmpgt_epu32_mask(magnitude, limit1);
    const std::uint32_t from3 = _mm512_cmpgt_epu32_mask(magnitude, limit2);
    const std::uint32_t tag = _pdep_u32(from1 ^ from2 ^ from3, kLowBits) | _pdep_u32(from2, kHighBits);
    std::memcpy(tags + i / 4, &tag, 4);
    if (from2 == 0) {  // almost always true of gradients: at most one byte each
      const __m512i ones = _mm512_maskz_compress_epi32(static_cast<__mmask16>(from1), q);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(ones));
      at += _mm_popcnt_u32(from1);
    } else {
      const __m512i codes = _mm512_mask_mov_epi32(q, static_cast<__mmask16>(from3), _mm512_castps_si512(value));
      at = store_packed(codes, tag, at);
    }
  }
  at += kErrboundScalar.encode(x + i, n - i, scale, tags + i / 4, at);
  return static_cast<std::size_t>(at - data);
}

// Sums the sizes with a table for half tag bytes, 64 bytes at a time.
std::size_t count_data(const std::uint8_t* tags, std::size_t tags_nbytes) {
  const __m512i sizes =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 1, 2, 3, 5, 2, 3, 4, 6, 4, 5, 6, 8));
  const __m512i low_half = _mm512_set1_epi8(0x0F);
  __m512i sums = _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + 64 <= tags_nbytes; i += 64) {
    const __m512i tag = _mm512_loadu_si512(tags + i);
    const __m512i low = _mm512_shuffle_epi8(sizes, _mm512_and_si512(tag, low_half));
    const __m512i high = _mm512_shuffle_epi8(sizes, _mm512_and_si512(_mm512_srli_epi16(tag, 4), low_half));
    sums = _mm512_add_epi64(sums, _mm512_sad_epu8(_mm512_add_epi8(low, high), _mm512_setzero_si512()));
  }
  return static_cast<std::size_t>(_mm512_reduce_add_epi64(sums)) +
         kErrboundScalar.count_data(tags + i, tags_nbytes - i);
}

struct Values {
  static constexpr std::size_t kStep = 16;
  static constexpr std::ptrdiff_t kReach = 64;  // the most that four loads of 16 bytes may read

  __m512 from_q;

  explicit Values(const ErrboundScale& scale) : from_q(_mm512_set1_ps(scale.from_q)) {}

  __m512 load(const std::uint8_t* from, const std::uint8_t*& data) const {
    const auto tags = load_word<std::uint32_t>(from);
    return (tags & kHighBits) == 0 ? load_small(data, tags) : load_any(data, tags);
  }

  // The bytes are moved to the top of their lanes, and an arithmetic shift per lane moves them down with their sign.
  __m512 load_any(const std::uint8_t*& data, std::uint32_t tags) const {
    const std::uint8_t* const second = data + kQuartets.nbytes[tags & 0xFF];
    const std::uint8_t* const third = second + kQuartets.nbytes[(tags >> 8) & 0xFF];
    const std::uint8_t* const fourth = third + kQuartets.nbytes[(tags >> 16) & 0xFF];
    const __m512i bytes = load_four(data, second, third, fourth);
    data = fourth + kQuartets.nbytes[tags >> 24];

    const __m512i top = _mm512_shuffle_epi8(bytes, load_shuffles(kQuartets.scatter, tags));
    const __m512i classes = _mm512_srlv_epi32(
        _mm512_set1_epi32(static_cast<int>(tags)),
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
    // vpermilps reads the two low bits of each lane, so the class needs no mask. Class 0 has zeros, so it may have any
    // shift except 0.
    const __m512i shifts = _mm512_castps_si512(_mm512_permutevar_ps(
        _mm512_castsi512_ps(_mm512_broadcast_i32x4(_mm_setr_epi32(24, 24, 16, 0))), classes));
    const __mmask16 raw = _mm512_testn_epi32_mask(shifts, shifts);
    const __m512 values = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srav_epi32(top, shifts)), from_q);
    return _mm512_mask_mov_ps(values, raw, _mm512_castsi512_ps(top));
  }

  // Returns sixteen values of at most one byte each.
  __m512 load_small(const std::uint8_t*& data, std::uint32_t tags) const {
    const __m512i bytes = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
    data += _mm_popcnt_u32(tags);
    const __m512i q = _mm512_maskz_expand_epi32(static_cast<__mmask16>(_pext_u32(tags, kLowBits)), bytes);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(q), from_q);
  }

  template <bool kAdd>
  void put(float* out, __m512 values) const {
    prefetch(out, kPrefetchNbytes);
    put16<kAdd>(out, values);
  }
};

struct Squares {
  __m512d low = _mm512_setzero_pd();
  __m512d high = _mm512_setzero_pd();
  std::size_t nonfinite = 0;

  void add(const float* x) {
    prefetch(x, kPrefetchNbytes);
    constexpr int kNanOrInfinity = 0x01 | 0x08 | 0x10 | 0x80;
    const __m512 raw = _mm512_loadu_ps(x);
    const __mmask16 bad = _mm512_fpclass_ps_mask(raw, kNanOrInfinity);
    const __m512 value = _mm512_maskz_mov_ps(static_cast<__mmask16>(~bad), raw);
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
    const __m512d second = _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
    low = _mm512_fmadd_pd(first, first, low);  // the product is exact, so fusing changes nothing
    high = _mm512_fmadd_pd(second, second, high);
    nonfinite += static_cast<std::size_t>(_mm_popcnt_u32(bad));
  }

  std::size_t store(double* lanes) const {
    _mm512_storeu_pd(lanes, low);
    _mm512_storeu_pd(lanes + 8, high);
    return nonfinite;
  }
};

}  // namespace

const ErrboundKernels kErrboundAvx512 = {
    .encode = encode,
    .count_data = count_data,
    .decode = errbound_decode<Values, false>,
    .decode_add = errbound_decode<Values, true>,
    .sum_squares = errbound_sum_squares<Squares>,
};

}  // namespace gradwire
