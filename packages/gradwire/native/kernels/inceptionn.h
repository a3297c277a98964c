// Kernels of `inceptionn`, the lossy format of the INCEPTIONN network card (Li et al., MICRO 2018, algorithms 2 and 3).
//
// The chunk is cut into bursts of 8 values, the last one padded with zeros. A burst is a 16-bit tag vector (lane i has
// its class in bits 2i+1..2i), then the lanes' payloads in lane order. With the biased exponent e of |x|:
//
//   class 0   e < eb          no bytes, decodes to +0
//   class 1   eb <= e < mid   1 byte:  sign, then 7 bits of |x| as a fraction of 2^(base-127), truncated
//   class 2   mid <= e < 127  2 bytes: sign, then 15 bits of |x| as a fraction of 1, truncated
//   class 3   e >= 127        4 bytes: the float itself (also Inf and NaN)
//
// base is 127 in the published format, whose class 1 doesn't keep bounds 2^(eb-127) below 2^-6, and mid in the bounded
// variant. A payload of magnitude 0 decodes to +0 with either sign. All numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

inline constexpr std::size_t kBurstValues = 8;
inline constexpr std::size_t kBurstMaxNbytes = 2 + 4 * kBurstValues;

struct InceptionnClasses {
  std::uint32_t first1;  // the bits of the smallest |x| of class 1
  std::uint32_t first2;  // the bits of the smallest |x| of class 2
  std::uint32_t base;    // the biased exponent of one unit of class 1's fraction
  float unit1;           // the value of the last bit of class 1
};
inline constexpr std::uint32_t kInceptionnFirst3 = 0x3F800000U;  // 1.0f
inline constexpr float kInceptionnUnit2 = 1.0F / 32768.0F;

struct InceptionnKernels {
  // Encodes n values, and returns the number of bytes. May write anywhere in out[0 .. 34 ceil(n/8)).
  std::size_t (*encode)(const float* x, std::size_t n, const InceptionnClasses& classes, std::uint8_t* out);
  // Records the sizes of `bursts` bursts from `position` on. Returns the position after them, or a number above nbytes
  // if a burst doesn't fit.
  std::size_t (*measure)(const std::uint8_t* payload, std::size_t nbytes, std::size_t position, std::size_t bursts,
                         std::uint8_t* sizes);
  // Decodes bursts of these sizes, which `measure` has returned and which fit before `end` (a part of a chunk may end
  // earlier).
  void (*decode)(const std::uint8_t* payload, const std::uint8_t* end, const std::uint8_t* sizes, float* out,
                 std::size_t n, const InceptionnClasses& classes);
  void (*decode_add)(const std::uint8_t* payload, const std::uint8_t* end, const std::uint8_t* sizes, float* acc,
                     std::size_t n, const InceptionnClasses& classes);
};

extern const InceptionnKernels kInceptionnScalar;
extern const InceptionnKernels kInceptionnAvx2;
extern const InceptionnKernels kInceptionnAvx512;

}  // namespace gradwire
