// The definition of `quantize`.
#include "kernels/quantize.h"

namespace gradwire {

namespace {

// Where the inverse is 0 the code is 0, also for infinity and NaN.
std::uint8_t code_of(float x, float inverse) {
  if (inverse == 0.0F) return 0;
  return static_cast<std::uint8_t>(round_half_even(x * inverse));
}

void encode_block(const float* x, std::size_t n, int bits, float inverse, std::uint8_t* codes) {
  if (bits == 8) {
    for (std::size_t i = 0; i < n; ++i) codes[i] = code_of(x[i], inverse);
    return;
  }
  for (std::size_t i = 0; i < n; i += 2) {
    const unsigned low = code_of(x[i], inverse) & 0xFU;
    const unsigned high = i + 1 < n ? code_of(x[i + 1], inverse) & 0xFU : 0U;
    codes[i / 2] = static_cast<std::uint8_t>(low | high << 4);
  }
}

void encode(const float* x, std::size_t n, int bits, std::size_t block, std::uint8_t* scales, std::uint8_t* codes) {
  for (std::size_t at = 0; at < n; at += block) {
    const std::size_t count = n - at < block ? n - at : block;
    const QuantizeScale chosen = quantize_scale(peak_bits_of(x + at, count), bits);
    store_word(scales, bits_of(chosen.scale));
    scales += 4;
    encode_block(x + at, count, bits, chosen.inverse, codes + at * static_cast<std::size_t>(bits) / 8);
  }
}

int value_of(const std::uint8_t* codes, std::size_t index, int bits) {
  if (bits == 8) return static_cast<std::int8_t>(codes[index]);
  const int nibble = codes[index / 2] >> (index % 2 * 4) & 0xF;
  return (nibble ^ 8) - 8;
}

template <bool kAdd>
void decode_as(const std::uint8_t* scales, const std::uint8_t* codes, std::size_t n, int bits, std::size_t block,
               float* out) {
  for (std::size_t at = 0; at < n; at += block, scales += 4) {
    const float scale = float_of(load_word<std::uint32_t>(scales));
    const std::size_t end = n - at < block ? n : at + block;
    for (std::size_t i = at; i < end; ++i) {
      put<kAdd>(out + i, static_cast<float>(value_of(codes, i, bits)) * scale);
    }
  }
}

void decode(const std::uint8_t* scales, const std::uint8_t* codes, std::size_t n, int bits, std::size_t block,
            float* out, bool add) {
  add ? decode_as<true>(scales, codes, n, bits, block, out) : decode_as<false>(scales, codes, n, bits, block, out);
}

bool are_codes(const std::uint8_t* codes, std::size_t nbytes, int bits) {
  bool found = false;
  for (std::size_t i = 0; i < nbytes; ++i) {
    found |= bits == 8 ? codes[i] == 0x80 : (codes[i] & 0x0F) == 0x08 || (codes[i] & 0xF0) == 0x80;
  }
  return !found;
}

}  // namespace

const QuantizeKernels kQuantizeScalar = {.encode = encode, .decode = decode, .are_codes = are_codes};

}  // namespace gradwire
