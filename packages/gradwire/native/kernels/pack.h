// Kernels of `pack`: the k most significant bits of every float, packed little-endian without gaps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/walk.h"

namespace gradwire {

struct PackKernels {
  // Writes exactly ceil(n * bits / 8) bytes; `bits` is 1..32.
  void (*pack)(const float* x, std::size_t n, int bits, std::uint8_t* out);
  // Reads exactly these bytes. The dropped bits decode to zeros.
  void (*unpack)(const std::uint8_t* packed, std::size_t n, int bits, float* out, bool add);
  // Returns whether any value is infinite or NaN.
  bool (*has_nonfinite)(const float* x, std::size_t n);
};

extern const PackKernels kPackScalar;
extern const PackKernels kPackAvx2;
extern const PackKernels kPackAvx512;
extern const PackKernels kPackNeon;

namespace {

// A target's Vectors keep whole bytes. pack<kBytes>(x, out) and unpack<kBytes, kAdd>(packed, out) process kStep values,
// and exactly kStep * kBytes bytes of payload. Other widths use the portable kernel.
template <typename Vectors, std::size_t kBytes>
void pack_bytes(const float* x, std::size_t n, std::uint8_t* out) {
  const std::size_t i =
      walk<Vectors::kStep>(n, [&](std::size_t at) { Vectors::template pack<kBytes>(x + at, out + kBytes * at); });
  kPackScalar.pack(x + i, n - i, 8 * kBytes, out + kBytes * i);
}

template <typename Vectors, std::size_t kBytes>
void unpack_bytes(const std::uint8_t* packed, std::size_t n, float* out, bool add) {
  const std::size_t i = choose(add, [&](auto chosen) {
    return walk<Vectors::kStep>(n, [&](std::size_t at) {
      Vectors::template unpack<kBytes, decltype(chosen)::value>(packed + kBytes * at, out + at);
    });
  });
  kPackScalar.unpack(packed + kBytes * i, n - i, 8 * kBytes, out + i, add);
}

template <typename Vectors>
void pack_by(const float* x, std::size_t n, int bits, std::uint8_t* out) {
  switch (bits) {
    case 8: return pack_bytes<Vectors, 1>(x, n, out);
    case 16: return pack_bytes<Vectors, 2>(x, n, out);
    case 24: return pack_bytes<Vectors, 3>(x, n, out);
    default: return kPackScalar.pack(x, n, bits, out);
  }
}

template <typename Vectors>
void unpack_by(const std::uint8_t* packed, std::size_t n, int bits, float* out, bool add) {
  if (bits == 32 && add) return unpack_bytes<Vectors, 4>(packed, n, out, add);  // without addition, it is a copy
  switch (bits) {
    case 8: return unpack_bytes<Vectors, 1>(packed, n, out, add);
    case 16: return unpack_bytes<Vectors, 2>(packed, n, out, add);
    case 24: return unpack_bytes<Vectors, 3>(packed, n, out, add);
    default: return kPackScalar.unpack(packed, n, bits, out, add);
  }
}

}  // namespace

}  // namespace gradwire
