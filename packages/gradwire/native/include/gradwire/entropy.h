// The entropy coder: bytes to fewer bytes, without loss, by how often each value occurs. Every target and every number of
// threads gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// A block: symbols that share a table. Its first byte is its mode:
//   0  raw        the n symbols as they are
//   1  constant   one byte, the value of all n symbols
//   2  coded      the table, then a stream of kernels/rans.h
//   3  by nibbles the same, with a table of nibbles, in blocks of pairs
//
// The table names the frequencies of the values 0, 1, 2, ... until they add up to 2^14; all values after that are absent:
//   0, r        values are absent, r + 1 of them
//   1 .. 191    a frequency
//   192 + h, l  the frequency 256 h + l, of 192 or more
//
// In a block of pairs, a symbol is two nibbles. A table of nibbles names the frequencies of 16 nibbles. The product of
// those of its nibbles is a symbol's count, from which its frequency follows as in an encoder: few bytes where 256
// frequencies would take more than they save.
//
// A block never takes more than its symbols and one byte.
inline std::size_t block_max_nbytes(std::size_t n) { return n + 1; }

enum class Symbols : std::uint8_t { kBytes, kPairs };

// Writes within out[0 .. block_max_nbytes(n)) and returns the bytes used.
std::size_t encode_block(const Target& target, const std::uint8_t* symbols, std::size_t n, std::uint8_t* out,
                         Symbols kind = Symbols::kBytes);

// The same, not coded.
std::size_t encode_raw_block(const std::uint8_t* symbols, std::size_t n, std::uint8_t* out);

// A block, and where its n symbols go.
struct Block {
  const std::uint8_t* from;
  std::size_t nbytes;
  std::uint8_t* symbols;
  std::size_t n;
  Symbols kind = Symbols::kBytes;
};

// Returns null, or a static sentence fragment that says what is wrong; then what `symbols` hold has no meaning.
const char* decode_block(const Target& target, const Block& block);

// The same of two blocks, in less time than one after the other takes.
const char* decode_two_blocks(const Target& target, const Block& one, const Block& other);

// Any number of symbols: one byte 1, the version of this format; seven bytes n; four bytes for the size of each block of
// 2^18 symbols (the last has the rest); the blocks. All numbers are little-endian.
std::size_t entropy_max_nbytes(std::size_t n);
std::size_t entropy_encode(const Target& target, const std::uint8_t* symbols, std::size_t n, std::uint8_t* out,
                           int threads);

// As decode_block.
const char* entropy_decode(const Target& target, const std::uint8_t* payload, std::size_t nbytes,
                           std::uint8_t* symbols, std::size_t n, int threads);

}  // namespace gradwire
