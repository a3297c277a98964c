// The definition of `ecsq`'s codes.
#include <cfloat>
#include <cmath>

#include "kernels/ecsq.h"

namespace gradwire {

namespace {

// A value's nibble, and its escape, if any.
unsigned code_of(float x, float inverse, std::uint16_t*& escapes) {
  const std::int32_t q = round_half_even(x * inverse);
  const std::int32_t magnitude = q < 0 ? -q : q;
  if (magnitude < kFirstEscape) return static_cast<unsigned>(q) & 0xF;
  *escapes++ = static_cast<std::uint16_t>(2 * (magnitude - kFirstEscape) + (q < 0 ? 1 : 0));
  return 0x8;
}

std::size_t to_codes(const float* x, std::size_t n, float inverse, std::uint8_t* codes, std::uint16_t* escapes) {
  std::uint16_t* at = escapes;
  for (std::size_t i = 0; i < n; i += 2) {
    const unsigned low = code_of(x[i], inverse, at);
    const unsigned high = i + 1 < n ? code_of(x[i + 1], inverse, at) : 0U;
    codes[i / 2] = static_cast<std::uint8_t>(low | high << 4);
  }
  return static_cast<std::size_t>(at - escapes);
}

std::int32_t value_of(const std::uint8_t* codes, std::size_t i, const std::uint16_t*& escapes) {
  const std::int32_t nibble = codes[i / 2] >> (i % 2 * 4) & 0xF;
  if (nibble != 0x8) return (nibble ^ 8) - 8;
  const std::int32_t escape = *escapes++;
  const std::int32_t magnitude = (escape >> 1) + kFirstEscape;
  return (escape & 1) != 0 ? -magnitude : magnitude;
}

// Rounding up to a step may overflow, although the value was finite.
float within_floats(float value) {
  if (value > FLT_MAX) return FLT_MAX;
  return value < -FLT_MAX ? -FLT_MAX : value;
}

template <bool kAdd>
std::size_t from_codes_as(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale,
                          float* out) {
  const std::uint16_t* at = escapes;
  for (std::size_t i = 0; i < n; ++i) {
    put<kAdd>(out + i, within_floats(static_cast<float>(value_of(codes, i, at)) * scale));
  }
  return static_cast<std::size_t>(at - escapes);
}

std::size_t from_codes(const std::uint8_t* codes, const std::uint16_t* escapes, std::size_t n, float scale, float* out,
                       bool add) {
  return add ? from_codes_as<true>(codes, escapes, n, scale, out) : from_codes_as<false>(codes, escapes, n, scale, out);
}

std::uint8_t foot_of(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t magnitude = ((bits & 0x7FFFFFFF) + (1U << (kFootShift - 1))) >> kFootShift;
  return magnitude < kLastFoot ? 0 : static_cast<std::uint8_t>(1 + 2 * (kFirstFoot - magnitude) + (bits >> 31));
}

std::size_t to_feet(const float* x, std::size_t n, float inverse, std::uint8_t* feet) {
  std::uint8_t* at = feet;
  for (std::size_t i = 0; i < n; ++i) {
    const float value = x[i] * inverse;
    if (std::fabs(value) <= 0.5F) *at++ = foot_of(value);
  }
  return static_cast<std::size_t>(at - feet);
}

float value_of_foot(std::uint8_t foot, float scale) {
  if (foot == 0) return 0.0F;
  const std::uint32_t place = foot - 1U;
  return float_of((kFirstFoot - (place >> 1)) << kFootShift | place << 31) * scale;
}

std::size_t add_feet(const std::uint8_t* codes, const std::uint8_t* feet, std::size_t n, float scale, float* out) {
  const std::uint8_t* at = feet;
  for (std::size_t i = 0; i < n; ++i) {
    if ((codes[i / 2] >> (i % 2 * 4) & 0xF) == 0) out[i] += value_of_foot(*at++, scale);
  }
  return static_cast<std::size_t>(at - feet);
}

}  // namespace

const EcsqKernels kEcsqScalar = {
    .to_codes = to_codes,
    .count = ecsq_count,
    .from_codes = from_codes,
    .to_feet = to_feet,
    .add_feet = add_feet,
};

}  // namespace gradwire
