// A small generator whose state is one number, so that a seed reproduces a round.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire::fuzz {

// SplitMix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
  }

  // Uniform in [0, limit), limit > 0; the bias of the remainder does not matter here.
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }

  bool one_in(std::size_t odds) { return below(odds) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace gradwire::fuzz
