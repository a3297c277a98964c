// The definition of `inceptionn`, which also handles the last few bursts on all other targets.
#include <algorithm>
#include <cstring>

#include "kernels/bits.h"
#include "kernels/inceptionn.h"

namespace gradwire {

namespace {

constexpr std::size_t kClassNbytes[4] = {0, 1, 2, 4};

struct Code {
  unsigned value_class;
  std::uint32_t bits;
};

Code code_of(float x, const InceptionnClasses& classes) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t magnitude = bits & kMagnitudeMask;
  if (magnitude >= kInceptionnFirst3) return {3, bits};
  if (magnitude < classes.first1) return {0, 0};
  const std::uint32_t sign = bits >> 31;
  const std::uint32_t significand = (magnitude & 0x7FFFFFU) | 0x800000U;
  const std::uint32_t exponent = magnitude >> 23;
  if (magnitude >= classes.first2) return {2, sign << 15 | significand >> (127 - exponent + 8)};
  // Below 2^-15, the published format shifts out all 24 bits.
  return {1, sign << 7 | significand >> std::min(classes.base - exponent + 16, 31U)};
}

std::size_t encode(const float* x, std::size_t n, const InceptionnClasses& classes, std::uint8_t* out) {
  std::uint8_t* at = out;
  for (std::size_t burst = 0; burst < n; burst += kBurstValues) {
    unsigned tags = 0;
    std::uint8_t* data = at + 2;
    for (std::size_t lane = 0; lane < kBurstValues && burst + lane < n; ++lane) {
      const Code code = code_of(x[burst + lane], classes);
      // Always write four bytes. Lane i starts at 4i or before, so this stays within the burst's 34 bytes.
      std::memcpy(data, &code.bits, 4);
      data += kClassNbytes[code.value_class];
      tags |= code.value_class << (2 * lane);
    }
    at[0] = static_cast<std::uint8_t>(tags);
    at[1] = static_cast<std::uint8_t>(tags >> 8);
    at = data;
  }
  return static_cast<std::size_t>(at - out);
}

unsigned tags_at(const std::uint8_t* burst) { return burst[0] | static_cast<unsigned>(burst[1]) << 8; }

std::size_t measure(const std::uint8_t* payload, std::size_t nbytes, std::size_t position, std::size_t bursts,
                    std::uint8_t* sizes) {
  for (std::size_t burst = 0; burst < bursts; ++burst) {
    if (position + 2 > nbytes) return nbytes + 1;
    std::size_t size = 2;
    for (unsigned tags = tags_at(payload + position); tags != 0; tags >>= 2) size += kClassNbytes[tags & 3];
    sizes[burst] = static_cast<std::uint8_t>(size);
    position += size;
  }
  return position;
}

float from_sign_and_magnitude(std::uint32_t sign, std::uint32_t magnitude, float unit) {
  const auto integer = static_cast<std::int32_t>(magnitude);
  return static_cast<float>(sign != 0 ? -integer : integer) * unit;
}

float value_of(unsigned value_class, const std::uint8_t* data, const InceptionnClasses& classes) {
  switch (value_class) {
    case 0:
      return 0.0F;
    case 1:
      return from_sign_and_magnitude(data[0] & 0x80U, data[0] & 0x7FU, classes.unit1);
    case 2: {
      std::uint16_t code;
      std::memcpy(&code, data, sizeof code);
      return from_sign_and_magnitude(code & 0x8000U, code & 0x7FFFU, kInceptionnUnit2);
    }
    default: {
      float x;
      std::memcpy(&x, data, sizeof x);
      return x;
    }
  }
}

template <bool kAdd>
void decode(const std::uint8_t* payload, const std::uint8_t* /*end*/, const std::uint8_t* /*sizes*/, float* out,
            std::size_t n, const InceptionnClasses& classes) {
  for (std::size_t burst = 0; burst < n; burst += kBurstValues) {
    unsigned tags = tags_at(payload);
    payload += 2;
    for (std::size_t i = burst; i < burst + kBurstValues && i < n; ++i, tags >>= 2) {
      const float value = value_of(tags & 3, payload, classes);
      out[i] = kAdd ? out[i] + value : value;
      payload += kClassNbytes[tags & 3];
    }
  }
}

}  // namespace

const InceptionnKernels kInceptionnScalar = {
    .encode = encode,
    .measure = measure,
    .decode = decode<false>,
    .decode_add = decode<true>,
};

}  // namespace gradwire
