// Weight deltas: sections and blocks, validation, and threads. The kernels are in kernels/delta_*.
#include "gradwire/delta.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "gradwire/entropy.h"
#include "gradwire/target.h"
#include "kernels/delta.h"
#include "kernels/hash64.h"
#include "sections.h"

namespace gradwire {

namespace {

constexpr std::size_t kSection = std::size_t{1} << 20;
constexpr std::size_t kHashPiece = std::size_t{1} << 21;

template <typename Word>
constexpr std::size_t kBlocks = 1 + sizeof(Word);

template <typename Word>
constexpr std::size_t kHeadNbytes = 4 * kBlocks<Word>;

std::size_t classes_nbytes(std::size_t n) { return (n + 3) / 4; }

template <typename Word>
const DeltaCoder<Word>& coder_of(const Target& target) {
  if constexpr (sizeof(Word) == 2) {
    return target.delta->bf16;
  } else {
    return target.delta->fp32;
  }
}

template <typename Word>
std::size_t section_max_nbytes(std::size_t n) {
  return kHeadNbytes<Word> + block_max_nbytes(classes_nbytes(n)) + sizeof(Word) * block_max_nbytes(n);
}

template <typename Word>
std::size_t max_nbytes(std::size_t n) {
  const Sections sections{n, kSection};
  const std::size_t full = n / kSection;
  const std::size_t rest = n % kSection != 0 ? section_max_nbytes<Word>(n % kSection) : 0;
  return sections.directory_nbytes() + full * section_max_nbytes<Word>(kSection) + rest;
}

// One thread's memory for a section of n weights. It is small for a small tensor, because the system maps large memory
// anew for each call.
template <typename Word>
struct Workspace {
  std::unique_ptr<std::uint8_t[]> classes;
  std::unique_ptr<std::uint8_t[]> planes;

  explicit Workspace(std::size_t n)
      : classes(scratch<std::uint8_t>(classes_nbytes(n))), planes(scratch<std::uint8_t>(sizeof(Word) * n)) {}
};

template <typename Word>
std::size_t encode_section(const Target& target, const float* masters, Word* base, std::size_t n, std::uint8_t* out,
                           bool code, const Workspace<Word>& own) {
  const std::size_t escapes = coder_of<Word>(target).code(masters, n, base, own.classes.get(), own.planes.get());
  std::uint8_t* at = out + kHeadNbytes<Word>;
  const auto put = [&](std::size_t block, const std::uint8_t* symbols, std::size_t count) {
    const std::size_t nbytes =
        code ? encode_block(target, symbols, count, at) : encode_raw_block(symbols, count, at);
    store_word(out + 4 * block, static_cast<std::uint32_t>(nbytes));
    at += nbytes;
  };
  put(0, own.classes.get(), classes_nbytes(n));
  for (std::size_t place = 0; place < sizeof(Word); ++place) put(1 + place, own.planes.get() + place * n, escapes);
  return static_cast<std::size_t>(at - out);
}

template <typename Word>
std::size_t encode(const Target& target, const float* masters, Word* base, std::size_t n, std::uint8_t* out, bool code,
                   int threads) {
  const Sections sections{n, kSection};
  const auto hire = [&] {
    return [&, own = Workspace<Word>(sections.elements(0))](std::size_t i, std::uint8_t* at) {
      const std::size_t first = sections.first(i);
      return encode_section(target, masters + first, base + first, sections.elements(i), at, code, own);
    };
  };
  return write_sections(sections, section_max_nbytes<Word>(kSection), threads, out, hire);
}

template <typename Word>
const char* read_escapes(const Target& target, const std::uint8_t* section, const std::size_t* starts,
                         std::size_t count, Word* escapes) {
  static_assert(sizeof(Word) % 2 == 0, "planes are decoded two at a time");
  const auto planes = scratch<std::uint8_t>(2 * count);
  for (std::size_t place = 0; place < sizeof(Word); place += 2) {
    const auto block = [&](std::size_t which) {
      const std::size_t from = starts[1 + place + which];
      return Block{section + from, starts[2 + place + which] - from, planes.get() + which * count, count};
    };
    if (const char* reason = decode_two_blocks(target, block(0), block(1))) return reason;
    for (std::size_t i = 0; i < count; ++i) {
      const auto bytes = static_cast<Word>(static_cast<Word>(planes[i] | planes[count + i] << 8) << 8 * place);
      escapes[i] = place == 0 ? bytes : static_cast<Word>(escapes[i] | bytes);
    }
  }
  return nullptr;
}

template <typename Word>
const char* read_section(const Target& target, const std::uint8_t* section, std::size_t nbytes, std::size_t n,
                         std::uint8_t* classes, Word* escapes) {
  if (nbytes < kHeadNbytes<Word>) return "the block sizes of a section are truncated";
  std::size_t starts[kBlocks<Word> + 1] = {kHeadNbytes<Word>};
  for (std::size_t i = 0; i < kBlocks<Word>; ++i) {
    starts[i + 1] = starts[i] + load_word<std::uint32_t>(section + 4 * i);
  }
  if (starts[kBlocks<Word>] != nbytes) return "the block sizes of a section do not add up";
  const std::size_t size = classes_nbytes(n);
  if (const char* reason = decode_block(target, {section + starts[0], starts[1] - starts[0], classes, size})) {
    return reason;
  }
  if (n % 4 != 0 && classes[size - 1] >> 2 * (n % 4) != 0) return "unused bits of its last class are set";
  const std::size_t count = target.delta->count_escapes(classes, size);
  return read_escapes(target, section, starts, count, escapes);
}

// All sections are validated before any is applied, so that an invalid payload changes nothing.
template <typename Word>
const char* apply(const Target& target, const std::uint8_t* body, std::size_t nbytes, Word* base, std::size_t n,
                  bool full, int threads) {
  const Sections sections{n, kSection};
  const auto classes = scratch<std::uint8_t>(classes_nbytes(n));
  const auto escapes = scratch<Word>(n + sections.count() * kEscapeSlack);
  const auto classes_of = [&](std::size_t i) { return classes.get() + classes_nbytes(sections.first(i)); };
  const auto escapes_of = [&](std::size_t i) { return escapes.get() + sections.first(i) + i * kEscapeSlack; };
  const char* const reason = read_sections(
      sections, threads, body, nbytes, [&](std::size_t i, const std::uint8_t* from, std::size_t size) {
        return read_section(target, from, size, sections.elements(i), classes_of(i), escapes_of(i));
      });
  if (reason != nullptr) return reason;
  const auto apply_section = [&](std::size_t i) {
    if (full) std::fill_n(base + sections.first(i), sections.elements(i), Word{0});
    coder_of<Word>(target).apply(classes_of(i), escapes_of(i), sections.elements(i), base + sections.first(i));
  };
  for_each_section(sections, threads, [&] { return apply_section; });
  return nullptr;
}

std::size_t nbytes_of(Words words, std::size_t n) {
  return n * (words == Words::bf16 ? sizeof(std::uint16_t) : sizeof(std::uint32_t));
}

}  // namespace

std::size_t delta_max_nbytes(Words words, std::size_t n) {
  return words == Words::bf16 ? max_nbytes<std::uint16_t>(n) : max_nbytes<std::uint32_t>(n);
}

std::size_t delta_encode(const Target& target, Words words, const float* masters, void* base, std::size_t n,
                         std::uint8_t* out, bool code, int threads) {
  return words == Words::bf16
             ? encode(target, masters, static_cast<std::uint16_t*>(base), n, out, code, threads)
             : encode(target, masters, static_cast<std::uint32_t*>(base), n, out, code, threads);
}

const char* delta_apply(const Target& target, Words words, const std::uint8_t* body, std::size_t nbytes, void* base,
                        std::size_t n, bool full, int threads) {
  return words == Words::bf16 ? apply(target, body, nbytes, static_cast<std::uint16_t*>(base), n, full, threads)
                              : apply(target, body, nbytes, static_cast<std::uint32_t*>(base), n, full, threads);
}

void delta_encode_message(const Target& target, Words words, const DeltaSource* sources, std::size_t count,
                          std::uint8_t* out, std::size_t align, Span* spans, bool code, int threads) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const DeltaSource& each = sources[i];
    const std::size_t begin = (end + align - 1) / align * align;
    std::uint8_t* const at = out + begin;
    if (each.front_nbytes == 0) {
      if (each.n != 0) std::memcpy(at, each.masters, sizeof(float) * each.n);
      end = begin + sizeof(float) * each.n;
    } else {
      std::memcpy(at, each.front, each.front_nbytes);
      end = begin + each.front_nbytes +
            delta_encode(target, words, each.masters, each.base, each.n, at + each.front_nbytes, code, threads);
      if (each.hashed) {
        const auto* const base = static_cast<const std::uint8_t*>(each.base);
        const std::uint64_t hash = hash64(target, base, nbytes_of(words, each.n), threads);
        store_word(at + each.front_nbytes - sizeof(hash), hash);
      }
    }
    spans[i] = {begin, end};
  }
}

const char* delta_apply_message(const Target& target, Words words, const DeltaBody* bodies, std::size_t count,
                                std::size_t& applied, int threads) {
  for (applied = 0; applied < count; ++applied) {
    const DeltaBody& each = bodies[applied];
    if (each.plain) {
      if (each.nbytes != nbytes_of(words, each.n)) return "its length differs from that of the weights";
      if (each.nbytes != 0) std::memcpy(each.base, each.body, each.nbytes);
    } else if (const char* reason =
                   delta_apply(target, words, each.body, each.nbytes, each.base, each.n, each.full, threads)) {
      return reason;
    }
  }
  return nullptr;
}

std::uint64_t hash64(const Target& target, const std::uint8_t* data, std::size_t nbytes, int threads) {
  const Sections pieces{nbytes, kHashPiece};
  std::vector<std::uint64_t> hashes(pieces.count());
  const auto hash_piece = [&](std::size_t i) {
    hashes[i] = target.hash64(data + pieces.first(i), pieces.elements(i));
  };
  for_each_section(pieces, threads, [&] { return hash_piece; });
  std::uint64_t hash = 0;
  for (const std::uint64_t each : hashes) hash_mix(hash ^= each);
  return hash;
}

}  // namespace gradwire
