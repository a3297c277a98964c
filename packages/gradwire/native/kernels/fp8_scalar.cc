// The definition of `fp8`.
#include "kernels/fp8.h"

namespace gradwire {

namespace {

// The comparison is signed and becomes a mask, because the compiler vectorises the loops below only without branches
// around float operations, and with comparisons that the vector unit has.
std::uint32_t choose_if_less(std::uint32_t left, std::uint32_t right, std::uint32_t then, std::uint32_t otherwise) {
  const auto mask = static_cast<std::uint32_t>(-(static_cast<std::int32_t>(left) < static_cast<std::int32_t>(right)));
  return otherwise ^ ((otherwise ^ then) & mask);
}

std::uint8_t code_of(float x, float scale, std::uint32_t limit) {
  const std::uint32_t sign = bits_of(x) >> 31 << 7;
  const float a = float_of(bits_of(x) & kMagnitudeMask) * scale;
  const std::uint32_t binade = bits_of(a) & kFp8ExponentMask;
  const std::uint32_t raised = choose_if_less(binade, kFp8SmallestNormal, kFp8SmallestNormal, binade) + kFp8Raise;
  const std::uint32_t units = bits_of(a + float_of(raised)) - raised;
  const std::uint32_t magnitude = units + (raised >> 20) - kFp8RaisedBias;
  return static_cast<std::uint8_t>(sign | choose_if_less(magnitude, limit, magnitude, limit));
}

void to_codes(const float* x, std::size_t n, std::uint32_t exponent, std::uint8_t* codes) {
  const float scale = fp8_encode_scale(exponent);
  const std::uint32_t limit = fp8_limit(exponent);
  for (std::size_t i = 0; i < n; ++i) codes[i] = code_of(x[i], scale, limit);
}

float value_of(std::uint8_t code, float scale) {
  const std::uint32_t magnitude = code & 0x7FU;
  const float normal = float_of((magnitude + kFp8Rebias) << 20);
  const float subnormal = float_of(kFp8AlignerBits + magnitude) - kFp8Aligner;
  const std::uint32_t bits = choose_if_less(magnitude, 8, bits_of(subnormal), bits_of(normal));
  return float_of(bits | (code & 0x80U) << 24) * scale;
}

template <bool kAdd>
void from_codes_as(const std::uint8_t* codes, std::size_t n, float scale, float* out) {
  for (std::size_t i = 0; i < n; ++i) put<kAdd>(out + i, value_of(codes[i], scale));
}

void from_codes(const std::uint8_t* codes, std::size_t n, std::uint32_t exponent, float* out, bool add) {
  const float scale = fp8_decode_scale(exponent);
  add ? from_codes_as<true>(codes, n, scale, out) : from_codes_as<false>(codes, n, scale, out);
}

}  // namespace

const Fp8Kernels kFp8Scalar = {.to_codes = to_codes, .from_codes = from_codes};

}  // namespace gradwire
