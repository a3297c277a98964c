// The definition of `pack`, for any number of kept bits: a 64-bit window slides over the bytes, 32 bits at a time.
#include "kernels/pack.h"

#include "kernels/bits.h"

namespace gradwire {

namespace {

void pack(const float* x, std::size_t n, int bits, std::uint8_t* out) {
  const int dropped = 32 - bits;
  std::uint64_t window = 0;
  int filled = 0;
  for (std::size_t i = 0; i < n; ++i) {
    window |= static_cast<std::uint64_t>(bits_of(x[i]) >> dropped) << filled;
    filled += bits;
    if (filled >= 32) {
      store_word(out, static_cast<std::uint32_t>(window));
      out += 4;
      window >>= 32;
      filled -= 32;
    }
  }
  for (; filled > 0; filled -= 8) {
    *out++ = static_cast<std::uint8_t>(window);
    window >>= 8;
  }
}

template <bool kAdd>
void unpack_as(const std::uint8_t* packed, std::size_t n, int bits, float* out) {
  const int dropped = 32 - bits;
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const std::uint8_t* const end = packed + (n * static_cast<std::size_t>(bits) + 7) / 8;
  std::uint64_t window = 0;
  int filled = 0;
  for (std::size_t i = 0; i < n; ++i) {
    while (filled < bits) {
      if (end - packed >= 4) {
        window |= static_cast<std::uint64_t>(load_word<std::uint32_t>(packed)) << filled;
        packed += 4;
        filled += 32;
      } else {
        window |= static_cast<std::uint64_t>(*packed++) << filled;
        filled += 8;
      }
    }
    put<kAdd>(out + i, float_of(static_cast<std::uint32_t>(window & mask) << dropped));
    window >>= bits;
    filled -= bits;
  }
}

void unpack(const std::uint8_t* packed, std::size_t n, int bits, float* out, bool add) {
  add ? unpack_as<true>(packed, n, bits, out) : unpack_as<false>(packed, n, bits, out);
}

bool has_nonfinite(const float* x, std::size_t n) { return peak_bits_of(x, n) >= kInfinityBits; }

}  // namespace

const PackKernels kPackScalar = {.pack = pack, .unpack = unpack, .has_nonfinite = has_nonfinite};

}  // namespace gradwire
