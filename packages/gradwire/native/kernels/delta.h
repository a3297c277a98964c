// Kernels of the weight deltas (gradwire/delta.h), and their definition, which each target compiles separately.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/bits.h"

namespace gradwire {

// The number of escapes past the last one that vectors may store and load.
inline constexpr std::size_t kEscapeSlack = 32;
// The number of weights whose escapes are split into bytes at once, from the L1 cache; a multiple of four.
inline constexpr std::size_t kDeltaTile = 4096;

template <typename Word>
struct DeltaCoder {
  // Writes the classes of n weights, four per byte, and the escapes, u - 3 of each weight of class 3: the lowest bytes
  // to the first n bytes of `planes`, the next ones to the next n, and so on. Replaces `base` with the masters' words.
  // Returns the number of escapes.
  std::size_t (*code)(const float* masters, std::size_t n, Word* base, std::uint8_t* classes, std::uint8_t* planes);
  // Applies classes and escapes to the words. `escapes` has kEscapeSlack more words than there are weights of class 3.
  void (*apply)(const std::uint8_t* classes, const Word* escapes, std::size_t n, Word* base);
};

struct DeltaKernels {
  DeltaCoder<std::uint16_t> bf16;
  DeltaCoder<std::uint32_t> fp32;
  // Returns the number of weights of class 3.
  std::size_t (*count_escapes)(const std::uint8_t* classes, std::size_t nbytes);
};

extern const DeltaKernels kDeltaScalar;
extern const DeltaKernels kDeltaAvx2;
extern const DeltaKernels kDeltaAvx512;

namespace {

template <typename Word>
constexpr Word kDeltaTop = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));

// Returns all bits set if the top bit is, else none.
template <typename Word>
Word delta_sign(Word word) {
  return static_cast<Word>(Word{0} - static_cast<Word>(word >> (8 * sizeof(Word) - 1)));
}

// Converts words to integers in total order, and back: ... -1, -0, +0, 1 ..., with NaN at both ends.
template <typename Word>
Word delta_order(Word word) {
  return static_cast<Word>(word ^ (delta_sign(word) & static_cast<Word>(~kDeltaTop<Word>)));
}

template <typename Word>
Word delta_word(float master) {
  if constexpr (sizeof(Word) == 2) {
    return bf16_of(master);
  } else {
    return bits_of(master);
  }
}

// The definition, for four weights or the rest.
template <typename W>
struct DeltaQuartet {
  using Word = W;
  using Classes = std::uint8_t;
  static constexpr std::size_t kWeights = 4;

  static std::uint8_t code(const float* masters, Word* base, Word*& escapes, std::size_t n = kWeights) {
    unsigned quartet = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const Word word = delta_word<Word>(masters[i]);
      const auto d = static_cast<Word>(delta_order(word) - delta_order(base[i]));
      const auto u = static_cast<Word>(static_cast<Word>(d << 1) ^ delta_sign(d));
      base[i] = word;
      *escapes = static_cast<Word>(u - 3);
      escapes += u >= 3 ? 1 : 0;
      quartet |= (u >= 3 ? 3U : static_cast<unsigned>(u)) << 2 * i;
    }
    return static_cast<std::uint8_t>(quartet);
  }

  static void apply(std::uint8_t classes, const Word*& escapes, Word* base, std::size_t n = kWeights) {
    for (std::size_t i = 0; i < n; ++i) {
      auto u = static_cast<Word>(classes >> 2 * i & 3);
      if (u == 3) u = static_cast<Word>(u + *escapes++);
      const auto d = static_cast<Word>(static_cast<Word>(u >> 1) ^ static_cast<Word>(Word{0} - static_cast<Word>(u & 1)));
      base[i] = delta_order(static_cast<Word>(delta_order(base[i]) + d));
    }
  }
};

// Calls `each` with a step and its start: as many steps of `Vector` as fit, then quartets, then the rest.
template <typename Vector, typename Each>
void delta_walk(std::size_t n, const Each& each) {
  using Quartet = DeltaQuartet<typename Vector::Word>;
  std::size_t i = 0;
  for (; i + Vector::kWeights <= n; i += Vector::kWeights) each(Vector{}, i);
  for (; i + Quartet::kWeights <= n; i += Quartet::kWeights) each(Quartet{}, i);
}

// Writes the classes and the escapes of n weights.
template <typename Vector, typename Word = typename Vector::Word>
std::size_t delta_code_tile(const float* masters, std::size_t n, Word* base, std::uint8_t* classes, Word* escapes) {
  Word* at = escapes;
  delta_walk<Vector>(n, [&](auto step, std::size_t i) {
    const typename decltype(step)::Classes codes = step.code(masters + i, base + i, at);
    std::memcpy(classes + i / 4, &codes, sizeof codes);
  });
  if (const std::size_t rest = n % 4; rest != 0) {
    classes[n / 4] = DeltaQuartet<Word>::code(masters + n - rest, base + n - rest, at, rest);
  }
  return static_cast<std::size_t>(at - escapes);
}

template <typename Vector, typename Word = typename Vector::Word>
std::size_t delta_code(const float* masters, std::size_t n, Word* base, std::uint8_t* classes, std::uint8_t* planes) {
  Word escapes[kDeltaTile + kEscapeSlack];
  std::size_t count = 0;
  for (std::size_t first = 0; first < n; first += kDeltaTile) {
    const std::size_t tile = n - first < kDeltaTile ? n - first : kDeltaTile;
    const std::size_t found =
        delta_code_tile<Vector>(masters + first, tile, base + first, classes + first / 4, escapes);
    for (std::size_t place = 0; place < sizeof(Word); ++place) {
      std::uint8_t* const plane = planes + place * n + count;
      for (std::size_t i = 0; i < found; ++i) plane[i] = static_cast<std::uint8_t>(escapes[i] >> 8 * place);
    }
    count += found;
  }
  return count;
}

template <typename Vector, typename Word = typename Vector::Word>
void delta_apply(const std::uint8_t* classes, const Word* escapes, std::size_t n, Word* base) {
  delta_walk<Vector>(n, [&](auto step, std::size_t i) {
    typename decltype(step)::Classes codes;
    std::memcpy(&codes, classes + i / 4, sizeof codes);
    step.apply(codes, escapes, base + i);
  });
  if (const std::size_t rest = n % 4; rest != 0) DeltaQuartet<Word>::apply(classes[n / 4], escapes, base + n - rest, rest);
}

[[maybe_unused]] std::size_t delta_count_escapes(const std::uint8_t* classes, std::size_t nbytes) {
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + 8 <= nbytes; i += 8) {
    const auto eight = load_word<std::uint64_t>(classes + i);
    count += static_cast<std::size_t>(__builtin_popcountll(eight & eight >> 1 & 0x5555555555555555U));
  }
  for (; i < nbytes; ++i) {
    const unsigned one = classes[i];
    count += static_cast<std::size_t>(__builtin_popcount(one & one >> 1 & 0x55U));
  }
  return count;
}

// The kernels of a target, given its vectors of 16-bit and 32-bit weights.
template <typename Vector16, typename Vector32>
constexpr DeltaKernels kDeltaKernelsOf = {
    .bf16 = {.code = delta_code<Vector16>, .apply = delta_apply<Vector16>},
    .fp32 = {.code = delta_code<Vector32>, .apply = delta_apply<Vector32>},
    .count_escapes = delta_count_escapes,
};

}  // namespace

}  // namespace gradwire
