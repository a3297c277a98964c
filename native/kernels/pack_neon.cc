// `pack` with whole bytes kept: loads and stores that part 16 values into planes of their bytes. Other widths take the
// portable kernel.
#include "kernels/pack.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

// The upper kBytes bytes of 16 values, and the floats of such bytes: plane 3 holds the signs.
template <int kBytes>
void pack_planes(const float* x, std::uint8_t* out) {
  const uint8x16x4_t planes = vld4q_u8(reinterpret_cast<const std::uint8_t*>(x));
  if constexpr (kBytes == 1) vst1q_u8(out, planes.val[3]);
  if constexpr (kBytes == 2) vst2q_u8(out, {{planes.val[2], planes.val[3]}});
  if constexpr (kBytes == 3) vst3q_u8(out, {{planes.val[1], planes.val[2], planes.val[3]}});
}

template <int kBytes, bool kAdd>
void unpack_planes(const std::uint8_t* packed, float* out) {
  const uint8x16_t zero = vdupq_n_u8(0);
  uint8x16x4_t planes = {{zero, zero, zero, zero}};
  if constexpr (kBytes == 1) planes.val[3] = vld1q_u8(packed);
  if constexpr (kBytes == 2) {
    const uint8x16x2_t two = vld2q_u8(packed);
    planes.val[2] = two.val[0];
    planes.val[3] = two.val[1];
  }
  if constexpr (kBytes == 3) {
    const uint8x16x3_t three = vld3q_u8(packed);
    for (int k = 0; k < 3; ++k) planes.val[k + 1] = three.val[k];
  }
  if constexpr (!kAdd) return vst4q_u8(reinterpret_cast<std::uint8_t*>(out), planes);
  float values[16];
  vst4q_u8(reinterpret_cast<std::uint8_t*>(values), planes);
  for (int i = 0; i < 16; i += 4) put4<kAdd>(out + i, vld1q_f32(values + i));
}

template <int kBytes>
void pack_all(const float* x, std::size_t n, std::uint8_t* out) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) pack_planes<kBytes>(x + i, out + kBytes * i);
  kPackScalar.pack(x + i, n - i, 8 * kBytes, out + kBytes * i);
}

template <int kBytes, bool kAdd>
void unpack_all(const std::uint8_t* packed, std::size_t n, float* out) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) unpack_planes<kBytes, kAdd>(packed + kBytes * i, out + i);
  kPackScalar.unpack(packed + kBytes * i, n - i, 8 * kBytes, out + i, kAdd);
}

void pack(const float* x, std::size_t n, int bits, std::uint8_t* out) {
  switch (bits) {
    case 8: return pack_all<1>(x, n, out);
    case 16: return pack_all<2>(x, n, out);
    case 24: return pack_all<3>(x, n, out);
    default: return kPackScalar.pack(x, n, bits, out);
  }
}

template <bool kAdd>
void unpack_as(const std::uint8_t* packed, std::size_t n, int bits, float* out) {
  switch (bits) {
    case 8: return unpack_all<1, kAdd>(packed, n, out);
    case 16: return unpack_all<2, kAdd>(packed, n, out);
    case 24: return unpack_all<3, kAdd>(packed, n, out);
    default: return kPackScalar.unpack(packed, n, bits, out, kAdd);
  }
}

void unpack(const std::uint8_t* packed, std::size_t n, int bits, float* out, bool add) {
  add ? unpack_as<true>(packed, n, bits, out) : unpack_as<false>(packed, n, bits, out);
}

bool has_nonfinite(const float* x, std::size_t n) { return kPackScalar.has_nonfinite(x, n); }

}  // namespace

const PackKernels kPackNeon = {.pack = pack, .unpack = unpack, .has_nonfinite = has_nonfinite};

}  // namespace gradwire
