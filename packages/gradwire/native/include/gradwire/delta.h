// Lossless deltas of weights. Each weight's bits, as an integer in total order, differ from those that the receiver
// holds by d units in the last place, and u = 0, 1, 2, 3, ... stands for d = 0, -1, 1, -2, ...
//
// The body of a delta: four bytes for the size of each section of 2^20 weights (the last has the rest); the sections. A
// section: four bytes for the size of each of its blocks; the blocks of entropy.h. The first block has a class min(u, 3)
// for each weight, four to a byte, the first in the lowest bits; unused bits are zero. The others, one for each byte of
// a weight, have the bytes of u - 3 of all weights of class 3: the lowest bytes first. Numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// The words that the receiver holds: the upper half of a float, rounded to nearest even, or all of it.
enum class Words { bf16, fp32 };

std::size_t delta_max_nbytes(Words words, std::size_t n);

// Encodes the masters against `base`, which becomes what they are as words. Without `code`, all blocks are raw.
std::size_t delta_encode(const Target& target, Words words, const float* masters, void* base, std::size_t n,
                         std::uint8_t* out, bool code, int threads);

// Changes `base` from what it was before, or with `full` from zeros, to what it became. Returns null, or a static
// sentence fragment that says what is wrong; then `base` is as it was.
const char* delta_apply(const Target& target, Words words, const std::uint8_t* body, std::size_t nbytes, void* base,
                        std::size_t n, bool full, int threads);

// One tensor of a message: its `front`, whose last eight bytes become the hash of `base` where it is `hashed`, and the
// body of its delta. Without a front, it is the masters themselves.
struct DeltaSource {
  const float* masters;
  void* base;
  std::size_t n;
  const std::uint8_t* front;
  std::size_t front_nbytes;
  bool hashed;
};

struct Span {
  std::size_t begin;
  std::size_t end;
};

// Writes all of them to `out`, each at a multiple of `align` bytes, and where each one is to `spans`.
void delta_encode_message(const Target& target, Words words, const DeltaSource* sources, std::size_t count,
                          std::uint8_t* out, std::size_t align, Span* spans, bool code, int threads);

// The body of a delta, and what it changes. A `plain` body is the words themselves, and as long as they are.
struct DeltaBody {
  const std::uint8_t* body;
  std::size_t nbytes;
  void* base;
  std::size_t n;
  bool full;
  bool plain;
};

// Applies them in their order until one is refused. Returns what delta_apply does, and how many were applied.
const char* delta_apply_message(const Target& target, Words words, const DeltaBody* bodies, std::size_t count,
                                std::size_t& applied, int threads);

// A hash of 64 bits; kernels/hash64.h defines that of a piece. Those of pieces of 2^21 bytes are folded in their order.
std::uint64_t hash64(const Target& target, const std::uint8_t* data, std::size_t nbytes, int threads);

}  // namespace gradwire
