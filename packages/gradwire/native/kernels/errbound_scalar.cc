// The definition of `errbound`, which also handles the last few values on all other targets.
#include <cmath>
#include <cstring>

#include "kernels/errbound.h"
#include "kernels/quartet_tables.h"

namespace gradwire {

namespace {

constexpr std::size_t kClassNbytes[4] = {0, 1, 2, 4};

struct Code {
  unsigned value_class;
  std::uint32_t bits;
};

Code code_of(float x, const ErrboundScale& scale) {
  const float scaled = x * scale.to_q;
  if (!(std::fabs(scaled) < 32768.0F)) return {3, bits_of(x)};  // also true of NaN
  // After adding 1.5 * 2^23, the low mantissa bits are the integer nearest to `scaled`, ties to even.
  const auto q = static_cast<std::int32_t>(bits_of(scaled + 12582912.0F) - 0x4B400000U);
  const auto magnitude = static_cast<std::uint32_t>(q < 0 ? -q : q);
  if (magnitude > scale.limit2) return {3, bits_of(x)};
  const auto bits = static_cast<std::uint32_t>(q);
  if (magnitude > scale.limit1) return {2, bits};
  return {magnitude == 0 ? 0U : 1U, bits};
}

std::size_t encode(const float* x, std::size_t n, const ErrboundScale& scale, std::uint8_t* tags,
                   std::uint8_t* data) {
  std::uint8_t* at = data;
  for (std::size_t quartet = 0; quartet < n; quartet += 4) {
    unsigned tag = 0;
    for (std::size_t lane = 0; lane < 4 && quartet + lane < n; ++lane) {
      const Code code = code_of(x[quartet + lane], scale);
      // Always write four bytes. Value i starts at 4i or before, so this stays within data[0 .. 4n).
      std::memcpy(at, &code.bits, 4);
      at += kClassNbytes[code.value_class];
      tag |= code.value_class << (2 * lane);
    }
    tags[quartet / 4] = static_cast<std::uint8_t>(tag);
  }
  return static_cast<std::size_t>(at - data);
}

std::size_t count_data(const std::uint8_t* tags, std::size_t tags_nbytes) {
  std::size_t nbytes = 0;
  for (std::size_t i = 0; i < tags_nbytes; ++i) nbytes += kQuartets.nbytes[tags[i]];
  return nbytes;
}

float value_of(unsigned value_class, const std::uint8_t* data, const ErrboundScale& scale) {
  switch (value_class) {
    case 0:
      return 0.0F;
    case 1:
      return static_cast<float>(static_cast<std::int8_t>(*data)) * scale.from_q;
    case 2: {
      std::int16_t q;
      std::memcpy(&q, data, sizeof q);
      return static_cast<float>(q) * scale.from_q;
    }
    default: {
      float x;
      std::memcpy(&x, data, sizeof x);
      return x;
    }
  }
}

template <bool kAdd>
void decode(const std::uint8_t* tags, const std::uint8_t* data, const std::uint8_t* /*data_end*/, float* out,
            std::size_t n, const ErrboundScale& scale) {
  for (std::size_t i = 0; i < n; ++i) {
    const unsigned value_class = (tags[i / 4] >> (2 * (i % 4))) & 3U;
    const float value = value_of(value_class, data, scale);
    out[i] = kAdd ? out[i] + value : value;
    data += kClassNbytes[value_class];
  }
}

SumOfSquares sum_squares(const float* x, std::size_t n) {
  double lanes[16] = {};
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const bool finite = (bits_of(x[i]) & 0x7F800000U) != 0x7F800000U;
    const double value = finite ? static_cast<double>(x[i]) : 0.0;
    lanes[i % 16] += value * value;  // the product is exact, because a float has 24 bits
    count += finite ? 1U : 0U;
  }
  return {fold_lanes(lanes), count};
}

}  // namespace

const ErrboundKernels kErrboundScalar = {
    .encode = encode,
    .count_data = count_data,
    .decode = decode<false>,
    .decode_add = decode<true>,
    .sum_squares = sum_squares,
};

}  // namespace gradwire
