// Kernels for sums of squares in double, in the same pass that reads or changes the values. Element i of a piece is
// added to lane i mod 16, and lanes are added as a tree, so that every target gives the same double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/bits.h"

namespace gradwire {

struct NormKernels {
  // Returns the sum of x^2.
  double (*look)(const float* x, const float* y, std::size_t n);
  // Sets x += y, and returns the sum of the old x^2.
  double (*add)(float* x, const float* y, std::size_t n);
  // Sets y = x - y, and returns the sum of the new y^2.
  double (*subtract)(const float* x, float* y, std::size_t n);
  // Sets x, y = y, x - y, and returns the sum of the new y^2.
  double (*adopt)(float* x, float* y, std::size_t n);
  // Divides x by a number of ranks, and returns whether all quotients are finite.
  bool (*finish)(float* x, std::size_t n, float divisor);
};

extern const NormKernels kNormsScalar;
extern const NormKernels kNormsAvx2;
extern const NormKernels kNormsAvx512;

// Longer ranges are summed in pieces of this many elements, in order, for any number of threads.
inline constexpr std::size_t kNormsPiece = 65536;

namespace {

// One definition for all targets, with the compiler's vector types. Each kernel file compiles it for its instruction
// set.
constexpr std::size_t kNormLanes = 16;
constexpr std::size_t kNormStep = 4;  // floats in a small vector; a wider register holds several vectors
using NormFloats = float __attribute__((vector_size(4 * kNormStep)));
using NormDoubles = double __attribute__((vector_size(8 * kNormStep)));

struct Look {
  template <typename T>
  static void act(T& x, T& /*y*/, T& squared) { squared = x; }
  static constexpr bool kWritesX = false;
  static constexpr bool kWritesY = false;
};

struct Add {
  template <typename T>
  static void act(T& x, T& y, T& squared) { squared = x; x = x + y; }
  static constexpr bool kWritesX = true;
  static constexpr bool kWritesY = false;
};

struct Subtract {
  template <typename T>
  static void act(T& x, T& y, T& squared) { squared = y = x - y; }
  static constexpr bool kWritesX = false;
  static constexpr bool kWritesY = true;
};

struct Adopt {
  template <typename T>
  static void act(T& x, T& y, T& squared) { const T lost = x - y; x = y; squared = y = lost; }
  static constexpr bool kWritesX = true;
  static constexpr bool kWritesY = true;
};

template <typename Pass, typename X, typename Y>
double sum_norm(X* x, Y* y, std::size_t n) {
  NormDoubles lanes[kNormLanes / kNormStep] = {};
  std::size_t i = 0;
  for (; i + kNormLanes <= n; i += kNormLanes) {
    for (std::size_t part = 0; part < kNormLanes / kNormStep; ++part) {
      const std::size_t at = i + part * kNormStep;
      NormFloats a;
      NormFloats b = {};
      NormFloats squared;
      std::memcpy(&a, x + at, sizeof a);
      if constexpr (Pass::kWritesX || Pass::kWritesY) std::memcpy(&b, y + at, sizeof b);
      Pass::act(a, b, squared);
      if constexpr (Pass::kWritesX) std::memcpy(x + at, &a, sizeof a);
      if constexpr (Pass::kWritesY) std::memcpy(y + at, &b, sizeof b);
      const NormDoubles wide = __builtin_convertvector(squared, NormDoubles);
      lanes[part] += wide * wide;
    }
  }
  double sums[kNormLanes];
  std::memcpy(sums, lanes, sizeof sums);
  for (std::size_t lane = 0; i < n; ++i, ++lane) {
    float a = x[i];
    float b = 0.0F;
    float squared;
    if constexpr (Pass::kWritesX || Pass::kWritesY) b = y[i];
    Pass::act(a, b, squared);
    if constexpr (Pass::kWritesX) x[i] = a;
    if constexpr (Pass::kWritesY) y[i] = b;
    sums[lane] += static_cast<double>(squared) * static_cast<double>(squared);
  }
  for (std::size_t half = kNormLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

struct Keep {
  template <typename T>
  static void act(T& /*x*/, float /*by*/) {}
  static constexpr bool kWrites = false;
};

struct Multiply {
  template <typename T>
  static void act(T& x, float by) { x = x * by; }
  static constexpr bool kWrites = true;
};

struct Divide {
  template <typename T>
  static void act(T& x, float by) { x = x / by; }
  static constexpr bool kWrites = true;
};

// All exponent bits of a non-finite float are 1.
template <typename Act>
bool is_finite_after(float* x, std::size_t n, float by) {
  using Floats = float __attribute__((vector_size(4 * kNormLanes)));
  using Words = std::int32_t __attribute__((vector_size(4 * kNormLanes)));
  constexpr auto kExponent = static_cast<std::int32_t>(kInfinityBits);
  Words found = {};
  std::size_t i = 0;
  for (; i + kNormLanes <= n; i += kNormLanes) {
    Floats values;
    std::memcpy(&values, x + i, sizeof values);
    Act::act(values, by);
    if constexpr (Act::kWrites) std::memcpy(x + i, &values, sizeof values);
    Words bits;
    std::memcpy(&bits, &values, sizeof bits);
    found |= (bits & kExponent) == kExponent;
  }
  bool finite = true;
  for (; i < n; ++i) {
    Act::act(x[i], by);
    finite &= (bits_of(x[i]) & kInfinityBits) != kInfinityBits;
  }
  for (std::size_t lane = 0; lane < kNormLanes; ++lane) finite &= found[lane] == 0;
  return finite;
}

// Multiplying by 2^-k gives the same bits as dividing by 2^k.
bool finish(float* x, std::size_t n, float divisor) {
  if (divisor == 1.0F) return is_finite_after<Keep>(x, n, 1.0F);
  const bool is_power = (bits_of(divisor) & 0x7FFFFFU) == 0;
  return is_power ? is_finite_after<Multiply>(x, n, 1.0F / divisor) : is_finite_after<Divide>(x, n, divisor);
}

constexpr NormKernels kNormsHere = {
    .look = sum_norm<Look, const float, const float>,
    .add = sum_norm<Add, float, const float>,
    .subtract = sum_norm<Subtract, const float, float>,
    .adopt = sum_norm<Adopt, float, float>,
    .finish = finish,
};

}  // namespace

}  // namespace gradwire
