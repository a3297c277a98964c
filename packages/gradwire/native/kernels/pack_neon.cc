// `pack` for whole bytes, by loads and stores that split 16 values into planes of bytes. Other widths use the portable
// kernel.
#include "kernels/pack.h"

#include "kernels/neon.h"

namespace gradwire {

namespace {

struct Vectors {
  static constexpr std::size_t kStep = 16;

  // Stores the upper kBytes bytes of 16 values, and loads floats from such bytes. Plane 3 has the signs.
  template <std::size_t kBytes>
  static void pack(const float* x, std::uint8_t* out) {
    const uint8x16x4_t planes = vld4q_u8(reinterpret_cast<const std::uint8_t*>(x));
    if constexpr (kBytes == 1) vst1q_u8(out, planes.val[3]);
    if constexpr (kBytes == 2) vst2q_u8(out, {{planes.val[2], planes.val[3]}});
    if constexpr (kBytes == 3) vst3q_u8(out, {{planes.val[1], planes.val[2], planes.val[3]}});
  }

  template <std::size_t kBytes>
  static uint8x16x4_t planes_of(const std::uint8_t* packed) {
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
    return planes;
  }

  template <std::size_t kBytes, bool kAdd>
  static void unpack(const std::uint8_t* packed, float* out) {
    if constexpr (kBytes == 4) {
      for (std::size_t i = 0; i < kStep; i += 4) put4<kAdd>(out + i, vreinterpretq_f32_u8(vld1q_u8(packed + 4 * i)));
    } else if constexpr (!kAdd) {
      vst4q_u8(reinterpret_cast<std::uint8_t*>(out), planes_of<kBytes>(packed));
    } else {
      float values[kStep];
      vst4q_u8(reinterpret_cast<std::uint8_t*>(values), planes_of<kBytes>(packed));
      for (std::size_t i = 0; i < kStep; i += 4) put4<kAdd>(out + i, vld1q_f32(values + i));
    }
  }
};

bool has_nonfinite(const float* x, std::size_t n) { return kPackScalar.has_nonfinite(x, n); }

}  // namespace

const PackKernels kPackNeon = {.pack = pack_by<Vectors>, .unpack = unpack_by<Vectors>, .has_nonfinite = has_nonfinite};

}  // namespace gradwire
