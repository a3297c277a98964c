// The entropy coder: lossless compression of bytes by the frequencies of their values. Every target and every number of
// threads gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// A block is a sequence of symbols that share a table. Its first byte is its mode:
//   0  raw        the n symbols as they are
//   1  constant   one byte, the value of all n symbols
//   2  coded      the table, then a stream of kernels/rans.h
//   3  by nibbles like 2, but with a table of nibbles; only in blocks of pairs
//
// The table lists the frequencies of the values 0, 1, 2, ... until they add up to 2^14; all later values are absent:
//   0, r        r + 1 values are absent
//   1 .. 191    a frequency
//   192 + h, l  the frequency 256 h + l, of 192 or more
//
// In a block of pairs, a symbol is two nibbles. A table of nibbles lists the frequencies of 16 nibbles. A symbol's
// count is the product of its nibbles' frequencies, and symbols' frequencies follow from counts as in the encoder. Such
// a table takes few bytes where 256 frequencies would take more than they save.
//
// A block is at most one byte longer than its symbols.
inline std::size_t block_max_nbytes(std::size_t n) { return n + 1; }

enum class Symbols : std::uint8_t { kBytes, kPairs };

// Writes within out[0 .. block_max_nbytes(n)), and returns the number of bytes used.
std::size_t encode_block(const Target& target, const std::uint8_t* symbols, std::size_t n, std::uint8_t* out,
                         Symbols kind = Symbols::kBytes);

// Writes a raw block.
std::size_t encode_raw_block(const std::uint8_t* symbols, std::size_t n, std::uint8_t* out);

// A block to decode, and the memory for its n symbols.
struct Block {
  const std::uint8_t* from;
  std::size_t nbytes;
  std::uint8_t* symbols;
  std::size_t n;
  Symbols kind = Symbols::kBytes;
};

// Returns null, or the fault as a static sentence fragment; `symbols` are then undefined.
const char* decode_block(const Target& target, const Block& block);

// Decodes two blocks, in less time than one after the other.
const char* decode_two_blocks(const Target& target, const Block& one, const Block& other);

// Encodes any number of symbols: one byte 1, the version of this format; seven bytes for n; four bytes for the size of
// each block of 2^18 symbols (the last one has the rest); the blocks. All numbers are little-endian.
std::size_t entropy_max_nbytes(std::size_t n);
std::size_t entropy_encode(const Target& target, const std::uint8_t* symbols, std::size_t n, std::uint8_t* out,
                           int threads);

// Returns null or the fault, like decode_block.
const char* entropy_decode(const Target& target, const std::uint8_t* payload, std::size_t nbytes,
                           std::uint8_t* symbols, std::size_t n, int threads);

}  // namespace gradwire
