// The definition of `quantize`.
#include "kernels/quantize.h"

namespace gradwire {

namespace {

unsigned code_of(float x, float inverse, unsigned mask) {
  return static_cast<unsigned>(round_half_even(x * inverse)) & mask;
}

void to_codes(const float* x, std::size_t n, int bits, float inverse, std::uint8_t* codes) {
  if (bits == 8) {
    for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(code_of(x[i], inverse, 0xFF));
    return;
  }
  for (std::size_t i = 0; i < n; i += 2) {
    const unsigned low = code_of(x[i], inverse, 0xF);
    const unsigned high = i + 1 < n ? code_of(x[i + 1], inverse, 0xF) : 0U;
    codes[i / 2] = static_cast<std::uint8_t>(low | high << 4);
  }
}

int value_of(const std::uint8_t* codes, std::size_t index, int bits) {
  if (bits == 8) return static_cast<std::int8_t>(codes[index]);
  const int nibble = codes[index / 2] >> (index % 2 * 4) & 0xF;
  return (nibble ^ 8) - 8;
}

template <bool kAdd>
void from_codes_as(const std::uint8_t* codes, std::size_t n, int bits, float scale, float* out) {
  for (std::size_t i = 0; i < n; ++i) put<kAdd>(out + i, static_cast<float>(value_of(codes, i, bits)) * scale);
}

void from_codes(const std::uint8_t* codes, std::size_t n, int bits, float scale, float* out, bool add) {
  add ? from_codes_as<true>(codes, n, bits, scale, out) : from_codes_as<false>(codes, n, bits, scale, out);
}

bool are_codes(const std::uint8_t* codes, std::size_t nbytes, int bits) {
  bool found = false;
  for (std::size_t i = 0; i < nbytes; ++i) {
    found |= bits == 8 ? codes[i] == 0x80 : (codes[i] & 0x0F) == 0x08 || (codes[i] & 0xF0) == 0x80;
  }
  return !found;
}

}  // namespace

const QuantizeKernels kQuantizeScalar = {
    .peak_bits = peak_bits_of,
    .to_codes = to_codes,
    .from_codes = from_codes,
    .are_codes = are_codes,
};

}  // namespace gradwire
