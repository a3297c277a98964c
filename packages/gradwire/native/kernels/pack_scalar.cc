// The definition of `pack`, for any number of kept bits.
#include "kernels/pack.h"

#include <array>
#include <utility>

#include "kernels/bit_groups.h"
#include "kernels/bits.h"

namespace gradwire {

namespace {

template <int kBits>
void pack_bits(const float* x, std::size_t n, std::uint8_t* out) {
  std::uint32_t values[kGroup] = {};
  std::size_t at = 0;
  for (; at + kGroup <= n; at += kGroup, out += kBits) {
    for (std::size_t i = 0; i < kGroup; ++i) values[i] = bits_of(x[at + i]) >> (32 - kBits);
    pack_group<kBits>(values, out);
  }
  const std::size_t rest = n - at;
  if (rest == 0) return;
  for (std::size_t i = 0; i < kGroup; ++i) values[i] = i < rest ? bits_of(x[at + i]) >> (32 - kBits) : 0;
  std::uint8_t bytes[kBits];
  pack_group<kBits>(values, bytes);
  std::memcpy(out, bytes, (rest * kBits + 7) / 8);
}

template <int kBits, bool kAdd>
void unpack_bits(const std::uint8_t* packed, std::size_t n, float* out) {
  std::uint32_t values[kGroup];
  std::size_t at = 0;
  for (; at + kGroup <= n; at += kGroup, packed += kBits) {
    unpack_group<kBits>(packed, values);
    for (std::size_t i = 0; i < kGroup; ++i) put<kAdd>(out + at + i, float_of(values[i] << (32 - kBits)));
  }
  const std::size_t rest = n - at;
  if (rest == 0) return;
  std::uint8_t bytes[kBits] = {};
  std::memcpy(bytes, packed, (rest * kBits + 7) / 8);
  unpack_group<kBits>(bytes, values);
  for (std::size_t i = 0; i < rest; ++i) put<kAdd>(out + at + i, float_of(values[i] << (32 - kBits)));
}

struct Width {
  void (*pack)(const float*, std::size_t, std::uint8_t*);
  void (*unpack)(const std::uint8_t*, std::size_t, float*);
  void (*unpack_add)(const std::uint8_t*, std::size_t, float*);
};

template <int... kIndex>
constexpr std::array<Width, sizeof...(kIndex)> make_widths(std::integer_sequence<int, kIndex...> /*indices*/) {
  return {Width{pack_bits<kIndex + 1>, unpack_bits<kIndex + 1, false>, unpack_bits<kIndex + 1, true>}...};
}

constexpr auto kWidths = make_widths(std::make_integer_sequence<int, 32>());

const Width& width(int bits) { return kWidths[static_cast<std::size_t>(bits) - 1]; }

void pack(const float* x, std::size_t n, int bits, std::uint8_t* out) {
  if (bits == 32 && n > 0) {
    std::memcpy(out, x, 4 * n);
  } else {
    width(bits).pack(x, n, out);
  }
}

void unpack(const std::uint8_t* packed, std::size_t n, int bits, float* out, bool add) {
  if (bits == 32 && n > 0 && !add) {
    std::memcpy(out, packed, 4 * n);
    return;
  }
  (add ? width(bits).unpack_add : width(bits).unpack)(packed, n, out);
}

bool has_nonfinite(const float* x, std::size_t n) { return peak_bits_of(x, n) >= kInfinityBits; }

}  // namespace

const PackKernels kPackScalar = {.pack = pack, .unpack = unpack, .has_nonfinite = has_nonfinite};

}  // namespace gradwire
