// errbound: an even quantiser whose error never exceeds a power of two, with four sizes of code per value.
//
// Payload: if the bound is relative, one byte E (the bound is 2^(E-127)) for the chunk or for each of its blocks;
// ceil(n/4) tag bytes, the data. Value i of a quartet has its class in bits 2i+1..2i of the tag byte: class 0, 1, 2, 3
// has 0, 1, 2, 4 data bytes. With q = round_half_even(x / (2 bound)): class 0 says q = 0, classes 1 and 2 carry q as
// int8 or int16, class 3 carries the float itself (values too large for q, NaN and Inf). A q whose product with 2 bound
// overflows is too large as well.
// All is little-endian; unused tag bits are 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/bits.h"
#include "kernels/walk.h"

namespace gradwire {

// The numbers of a bound for kernels. Scaling by a power of two is exact, so |decoded - x| <= bound holds without slack.
struct ErrboundScale {
  float to_q;            // 1 / (2 bound)
  float from_q;          // 2 bound
  std::uint32_t limit1;  // the largest |q| of class 1
  std::uint32_t limit2;  // the largest |q| of class 2
};

// Sum over the finite elements of a block of at most kSquaresBlock elements. Element i is added to lane i mod 16, and
// the lanes are added up as a tree (fold_lanes), so that every target gives the same double.
struct SumOfSquares {
  double sum;
  std::size_t count;
};
inline constexpr std::size_t kSquaresBlock = 65536;

struct ErrboundKernels {
  // Writes ceil(n/4) tag bytes; returns the number of data bytes; may write anywhere in data[0 .. 4n).
  std::size_t (*encode)(const float* x, std::size_t n, const ErrboundScale& scale, std::uint8_t* tags,
                        std::uint8_t* data);
  // The number of data bytes that these tag bytes announce.
  std::size_t (*count_data)(const std::uint8_t* tags, std::size_t tags_nbytes);
  // The tags have been checked against the data stream, which ends at data_end (a part of a chunk may end earlier).
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

// Internal linkage: each kernel file must keep its own copy, compiled for its own instruction set.
[[maybe_unused]] double fold_lanes(double* lanes) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// A target's Values is made with the scale. Its load(tags, data), of which each call moves `data` on, gives kStep values,
// and may read kReach bytes from there; put<kAdd>(out, values) writes them.
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
    // Near the end of the data, yet many values of class 0 may follow: go on in a padded copy.
    std::memcpy(tail, data, static_cast<std::size_t>(data_end - data));
    data = tail;
    data_end = tail + sizeof tail;
    i = errbound_decode_steps<Values, kAdd>(tags, data, data_end, out, i, n, scale);
  }
  const auto scalar = kAdd ? kErrboundScalar.decode_add : kErrboundScalar.decode;
  scalar(tags + i / 4, data, data_end, out + i, n - i, scale);
}

// A target's Squares adds up 16 values at a time: add(x); store(lanes) gives the sums and returns how many values were
// not finite.
template <typename Squares>
SumOfSquares errbound_sum_squares(const float* x, std::size_t n) {
  Squares squares;
  std::size_t i = walk<16>(n, [&](std::size_t at) { squares.add(x + at); });
  double lanes[16];
  std::size_t count = n - squares.store(lanes);
  for (std::size_t lane = 0; i < n; ++i, ++lane) {
    const bool finite = (bits_of(x[i]) & kInfinityBits) != kInfinityBits;
    const double value = finite ? static_cast<double>(x[i]) : 0.0;
    lanes[lane] += value * value;  // exact before the addition: a float has 24 bits
    count -= finite ? 0U : 1U;
  }
  return {fold_lanes(lanes), count};
}

}  // namespace

}  // namespace gradwire
