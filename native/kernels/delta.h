// Kernels of the weight deltas (gradwire/delta.h), and their definition, which each target compiles for itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bits.h"

namespace gradwire {

// Vectors store, and load, so many escapes more than there are.
inline constexpr std::size_t kEscapeSlack = 32;

template <typename Word>
struct DeltaCoder {
  // Writes the classes of n weights, four to a byte, and the escapes, u - 3 of each weight of class 3; `base` becomes the
  // masters' words. Returns how many escapes there are; `escapes` has room for n + kEscapeSlack.
  std::size_t (*code)(const float* masters, std::size_t n, Word* base, std::uint8_t* classes, Word* escapes);
  // The reverse; `escapes` has kEscapeSlack words more than there are weights of class 3.
  void (*apply)(const std::uint8_t* classes, const Word* escapes, std::size_t n, Word* base);
};

struct DeltaKernels {
  DeltaCoder<std::uint16_t> bf16;
  DeltaCoder<std::uint32_t> fp32;
  // How many weights have class 3.
  std::size_t (*count_escapes)(const std::uint8_t* classes, std::size_t nbytes);
};

extern const DeltaKernels kDeltaScalar;
extern const DeltaKernels kDeltaAvx2;
extern const DeltaKernels kDeltaAvx512;

namespace {

template <typename Word>
constexpr Word kDeltaTop = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));

// All bits where the top one is set, else none.
template <typename Word>
Word delta_sign(Word word) {
  return static_cast<Word>(Word{0} - static_cast<Word>(word >> (8 * sizeof(Word) - 1)));
}

// To integers in total order and back: ... -1, -0, +0, 1 ..., with NaN at both ends.
template <typename Word>
Word delta_order(Word word) {
  return static_cast<Word>(word ^ (delta_sign(word) & static_cast<Word>(~kDeltaTop<Word>)));
}

template <typename Word>
Word delta_word(float master);

template <>
[[maybe_unused]] std::uint16_t delta_word<std::uint16_t>(float master) { return bf16_of(master); }

template <>
[[maybe_unused]] std::uint32_t delta_word<std::uint32_t>(float master) { return bits_of(master); }

template <typename Word>
std::size_t delta_code(const float* masters, std::size_t n, Word* base, std::uint8_t* classes, Word* escapes) {
  std::size_t count = 0;
  for (std::size_t first = 0; first < n; first += 4) {
    unsigned quartet = 0;
    for (std::size_t i = first; i < n && i < first + 4; ++i) {
      const Word word = delta_word<Word>(masters[i]);
      const auto d = static_cast<Word>(delta_order(word) - delta_order(base[i]));
      const auto u = static_cast<Word>(static_cast<Word>(d << 1) ^ delta_sign(d));
      base[i] = word;
      escapes[count] = static_cast<Word>(u - 3);
      count += u >= 3 ? 1 : 0;
      quartet |= (u >= 3 ? 3U : static_cast<unsigned>(u)) << 2 * (i - first);
    }
    classes[first / 4] = static_cast<std::uint8_t>(quartet);
  }
  return count;
}

template <typename Word>
void delta_apply_words(const std::uint8_t* classes, const Word* escapes, std::size_t n, Word* base) {
  for (std::size_t i = 0; i < n; ++i) {
    auto u = static_cast<Word>(classes[i / 4] >> 2 * (i % 4) & 3);
    if (u == 3) u = static_cast<Word>(u + *escapes++);
    const auto d = static_cast<Word>(static_cast<Word>(u >> 1) ^ static_cast<Word>(Word{0} - static_cast<Word>(u & 1)));
    base[i] = delta_order(static_cast<Word>(delta_order(base[i]) + d));
  }
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

}  // namespace

}  // namespace gradwire
