// Lossless deltas of weights. A weight's bits, as an integer in total order, differ from the receiver's by d units in
// the last place; u = 0, 1, 2, 3, ... encodes d = 0, -1, 1, -2, ...
//
// The body of a delta has four bytes for the size of each section of 2^20 weights (the last one has the rest), then the
// sections. A section has four bytes for the size of each of its blocks, then the blocks (entropy.h). The first block
// has each weight's class min(u, 3), four classes per byte, the first in the lowest bits; unused bits are zero. The
// other blocks, one for each byte of a weight, have the bytes of u - 3 of all weights of class 3, the lowest bytes
// first. Numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// The receiver's words: the upper halves of floats, rounded to nearest even, or whole floats.
enum class Words { bf16, fp32 };

std::size_t delta_max_nbytes(Words words, std::size_t n);

// Encodes the change from `base` to the masters, and replaces `base` with the masters' words. Without `code`, all
// blocks are raw.
std::size_t delta_encode(const Target& target, Words words, const float* masters, void* base, std::size_t n,
                         std::uint8_t* out, bool code, int threads);

// Applies a delta to `base` or, with `full`, to zeros, and stores the result in `base`. Returns null, or the fault as a
// static sentence fragment; `base` is then unchanged.
const char* delta_apply(const Target& target, Words words, const std::uint8_t* body, std::size_t nbytes, void* base,
                        std::size_t n, bool full, int threads);

// One tensor of a message: its `front`, and the body of its delta. If `hashed`, the last eight bytes of the front
// become the hash of `base`. Without a front, the message has the masters themselves.
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

// Writes all tensors to `out`, each at a multiple of `align` bytes, and their positions to `spans`.
void delta_encode_message(const Target& target, Words words, const DeltaSource* sources, std::size_t count,
                          std::uint8_t* out, std::size_t align, Span* spans, bool code, int threads);

// The body of a delta, and the words that it changes. A `plain` body is the new words themselves.
struct DeltaBody {
  const std::uint8_t* body;
  std::size_t nbytes;
  void* base;
  std::size_t n;
  bool full;
  bool plain;
};

// Applies the bodies in order until one is invalid. Returns the result of delta_apply, and the number of applied
// bodies.
const char* delta_apply_message(const Target& target, Words words, const DeltaBody* bodies, std::size_t count,
                                std::size_t& applied, int threads);

// Returns a 64-bit hash. kernels/hash64.h defines the hash of a piece; the hashes of all pieces of 2^21 bytes are
// folded in order.
std::uint64_t hash64(const Target& target, const std::uint8_t* data, std::size_t nbytes, int threads);

}  // namespace gradwire
