// `errbound`, four values at a time.
#include "kernels/errbound.h"
#include "kernels/neon.h"
#include "kernels/quartet_tables.h"

namespace gradwire {

namespace {

// Returns a tag byte with the classes 0..3 of four values: sums masks, and weights the lanes.
unsigned tag_of(uint32x4_t from1, uint32x4_t from2, uint32x4_t from3) {
  const uint32x4_t classes = vsubq_u32(vdupq_n_u32(0), vaddq_u32(vaddq_u32(from1, from2), from3));
  const int32x4_t places = {0, 2, 4, 6};
  return vaddvq_u32(vshlq_u32(classes, places));
}

std::size_t encode(const float* x, std::size_t n, const ErrboundScale& scale, std::uint8_t* tags,
                   std::uint8_t* data) {
  const float32x4_t to_q = vdupq_n_f32(scale.to_q);
  const uint32x4_t limit1 = vdupq_n_u32(scale.limit1);
  const uint32x4_t limit2 = vdupq_n_u32(scale.limit2);
  std::uint8_t* at = data;
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const uint32x4_t bits = load_bits(x + i);
    const float32x4_t scaled = vmulq_f32(vreinterpretq_f32_u32(bits), to_q);
    const uint32x4_t number = vceqq_f32(scaled, scaled);  // the conversion of a NaN gives 0
    const int32x4_t q = vcvtnq_s32_f32(scaled);
    const uint32x4_t magnitude = vreinterpretq_u32_s32(vabsq_s32(q));
    const uint32x4_t from3 = vornq_u32(vcgtq_u32(magnitude, limit2), number);
    const uint32x4_t from2 = vorrq_u32(vcgtq_u32(magnitude, limit1), from3);
    const uint32x4_t from1 = vorrq_u32(vtstq_u32(magnitude, magnitude), from3);
    const unsigned tag = tag_of(from1, from2, from3);
    tags[i / 4] = static_cast<std::uint8_t>(tag);
    const uint32x4_t codes = vbslq_u32(from3, bits, vreinterpretq_u32_s32(q));
    // A store of 16 bytes ends within data[0 .. 4n), because value i starts at 4i or before.
    vst1q_u8(at, vqtbl1q_u8(vreinterpretq_u8_u32(codes), vld1q_u8(kQuartets.gather[tag])));
    at += kQuartets.nbytes[tag];
  }
  at += kErrboundScalar.encode(x + i, n - i, scale, tags + i / 4, at);
  return static_cast<std::size_t>(at - data);
}

// Sums the sizes with a table for half tag bytes.
std::size_t count_data(const std::uint8_t* tags, std::size_t tags_nbytes) {
  const uint8x16_t sizes = {0, 1, 2, 4, 1, 2, 3, 5, 2, 3, 4, 6, 4, 5, 6, 8};
  std::size_t sum = 0;
  std::size_t i = 0;
  for (; i + 16 <= tags_nbytes; i += 16) {
    const uint8x16_t tag = vld1q_u8(tags + i);
    const uint8x16_t low = vqtbl1q_u8(sizes, vandq_u8(tag, vdupq_n_u8(0x0F)));
    sum += vaddlvq_u8(vaddq_u8(low, vqtbl1q_u8(sizes, vshrq_n_u8(tag, 4))));
  }
  return sum + kErrboundScalar.count_data(tags + i, tags_nbytes - i);
}

struct Values {
  static constexpr std::size_t kStep = 4;
  static constexpr std::ptrdiff_t kReach = 16;

  float32x4_t from_q;

  explicit Values(const ErrboundScale& scale) : from_q(vdupq_n_f32(scale.from_q)) {}

  // The bytes are moved to the top of their lanes, and an arithmetic shift per lane moves them down with their sign.
  float32x4_t load(const std::uint8_t* tags, const std::uint8_t*& data) const {
    const unsigned tag = *tags;
    const uint8x16_t moved = vqtbl1q_u8(vld1q_u8(data), vld1q_u8(kQuartets.scatter[tag]));
    data += kQuartets.nbytes[tag];
    const int32x4_t top = vreinterpretq_s32_u8(moved);
    const int32x4_t places = {0, -2, -4, -6};
    const uint32x4_t classes = vandq_u32(vshlq_u32(vdupq_n_u32(tag), places), vdupq_n_u32(3));
    const uint32x4_t is2 = vceqq_u32(classes, vdupq_n_u32(2));
    // Class 0 has zeros, so it may have any shift.
    const int32x4_t q = vbslq_s32(is2, vshrq_n_s32(top, 16), vshrq_n_s32(top, 24));
    const float32x4_t values = vmulq_f32(vcvtq_f32_s32(q), from_q);
    return vbslq_f32(vceqq_u32(classes, vdupq_n_u32(3)), vreinterpretq_f32_s32(top), values);
  }

  template <bool kAdd>
  void put(float* out, float32x4_t values) const {
    put4<kAdd>(out, values);
  }
};

struct Squares {
  float64x2_t sums[8] = {};
  uint32x4_t nonfinite = vdupq_n_u32(0);

  void add(const float* x) {
    const uint32x4_t infinity = vdupq_n_u32(kInfinityBits);
    for (std::size_t part = 0; part < 4; ++part) {
      const uint32x4_t raw = load_bits(x + 4 * part);
      const uint32x4_t bad = vceqq_u32(vandq_u32(raw, infinity), infinity);
      const float32x4_t value = vreinterpretq_f32_u32(vbicq_u32(raw, bad));
      const float64x2_t first = vcvt_f64_f32(vget_low_f32(value));
      const float64x2_t second = vcvt_high_f64_f32(value);
      sums[2 * part] = vaddq_f64(sums[2 * part], vmulq_f64(first, first));
      sums[2 * part + 1] = vaddq_f64(sums[2 * part + 1], vmulq_f64(second, second));
      nonfinite = vsubq_u32(nonfinite, bad);
    }
  }

  std::size_t store(double* lanes) const {
    for (std::size_t k = 0; k < 8; ++k) vst1q_f64(lanes + 2 * k, sums[k]);
    return vaddvq_u32(nonfinite);
  }
};

}  // namespace

const ErrboundKernels kErrboundNeon = {
    .encode = encode,
    .count_data = count_data,
    .decode = errbound_decode<Values, false>,
    .decode_add = errbound_decode<Values, true>,
    .sum_squares = errbound_sum_squares<Squares>,
};

}  // namespace gradwire
