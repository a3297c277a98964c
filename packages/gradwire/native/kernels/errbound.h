// Kernels of `errbound`: a uniform quantiser whose error never exceeds a power of two, with codes of four sizes.
//
// Payload: if the bound is relative, one byte E (the bound is 2^(E-127)) for the chunk or for each of its blocks; then
// ceil(n/4) tag bytes; then the data. Value i of a quartet has its class in bits 2i+1..2i of the tag byte. Classes 0,
// 1, 2, 3 have 0, 1, 2, 4 data bytes. With q = round_half_even(x / (2 bound)), class 0 means q = 0, classes 1 and 2
// have q as int8 or int16, and class 3 has the float itself (NaN, Inf, and values too large for q, including those
// whose product q * 2 bound overflows). All is little-endian; unused tag bits are 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/bits.h"
#include "kernels/walk.h"

namespace gradwire {

// A bound's factors and limits. Scaling by a power of two is exact, so |decoded - x| <= bound holds without slack.
struct ErrboundScale {
  float to_q;            // 1 / (2 bound)
  float from_q;          // 2 bound
  std::uint32_t limit1;  // the largest |q| of class 1
  std::uint32_t limit2;  // the largest |q| of class 2
};

// The sum of squares over the finite elements of a block of at most kSquaresBlock elements. Element i is added to lane
// i mod 16, and lanes are added as a tree (fold_lanes), so that every target gives the same double.
struct SumOfSquares {
  double sum;
  std::size_t count;
};
inline constexpr std::size_t kSquaresBlock = 65536;

struct ErrboundKernels {
  // Writes ceil(n/4) tag bytes, and returns the number of data bytes. May write anywhere in data[0 .. 4n).
  std::size_t (*encode)(const float* x, std::size_t n, const ErrboundScale& scale, std::uint8_t* tags,
                        std::uint8_t* data);
  // Returns the number of data bytes according to these tag bytes.
  std::size_t (*count_data)(const std::uint8_t* tags, std::size_t tags_nbytes);
  // Decodes n values. The caller has checked the tags against the data, which ends at data_end (a part may end
  // earlier).
  void (*decode)(const std::uint8_t* tags, const std::uint8_t* data, const std::uint8_t* data_end, float* out,
                 std::size_t n, const ErrboundScale& scale);
  void (*decode_add)(const std::uint8_t* tags, const std::uint8_t* data, const std::uint8_t* data_end, float* acc,
                     std::size_t n, const ErrboundScale& scale);
  SumOfSquares (*sum_squares)(const float* x, std::size_t n);
};

extern const ErrboundKernels kErrboundScalar;
extern const ErrboundKernels kErrboundAvx2;
extern const ErrboundKernels kErrboundAvx512;
extern const ErrboundKernels kErrboundNeon;

namespace {

// Internal linkage, because each kernel file needs its own copy, compiled for its instruction set.
[[maybe_unused]] double fold_lanes(double* lanes) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// A target's Values is constructed with the scale. load(tags, data) returns kStep values and advances `data`, from
// which it may read kReach bytes; put<kAdd>(out, values) writes them.
template <typename Values, bool kAdd>
std::size_t errbound_decode_steps(const std::uint8_t* tags, const std::uint8_t*& data, const std::uint8_t* data_end,
                                  float* out, std::size_t i, std::size_t n, const ErrboundScale& scale) {
  const Values values(scale);
  for (; i + Values::kStep <= n && data_end - data >= Values::kReach; i += Values::kStep) {
    values.template put<kAdd>(out + i, values.load(tags + i / 4, data));
  }
  return i;
}

template <typename Values, bool kAdd>
void errbound_decode(const std::uint8_t* tags, const std::uint8_t* data, const std::uint8_t* data_end, float* out,
                     std::size_t n, const ErrboundScale& scale) {
  std::size_t i = errbound_decode_steps<Values, kAdd>(tags, data, data_end, out, 0, n, scale);
  std::uint8_t tail[2 * Values::kReach] = {};
  if (i + Values::kStep <= n) {
    // Near the end of the data, many values of class 0 may still follow, so continue in a padded copy.
    std::memcpy(tail, data, static_cast<std::size_t>(data_end - data));
    data = tail;
    data_end = tail + sizeof tail;
    i = errbound_decode_steps<Values, kAdd>(tags, data, data_end, out, i, n, scale);
  }
  const auto scalar = kAdd ? kErrboundScalar.decode_add : kErrboundScalar.decode;
  scalar(tags + i / 4, data, data_end, out + i, n - i, scale);
}

// A target's Squares adds 16 values at a time with add(x). store(lanes) writes the sums, and returns the number of
// non-finite values.
template <typename Squares>
SumOfSquares errbound_sum_squares(const float* x, std::size_t n) {
  Squares squares;
  std::size_t i = walk<16>(n, [&](std::size_t at) { squares.add(x + at); });
  double lanes[16];
  std::size_t count = n - squares.store(lanes);
  for (std::size_t lane = 0; i < n; ++i, ++lane) {
    const bool finite = (bits_of(x[i]) & kInfinityBits) != kInfinityBits;
    const double value = finite ? static_cast<double>(x[i]) : 0.0;
    lanes[lane] += value * value;  // the product is exact, because a float has 24 bits
    count -= finite ? 0U : 1U;
  }
  return {fold_lanes(lanes), count};
}

}  // namespace

}  // namespace gradwire
