// Format `ecsq` (entropy-coded scalar quantisation): a = the bits of a float from 2^-5 to 4, the step size relative to
// a block's root mean square; b = the number of values per block, a power of two from 64 to 65536; c = 1 if values
// below half a step have a foot, else 0.
//
// A value is q * scale. q is an integer, and a block's scale is the upper half of a float slightly below a * RMS. A
// block with a non-finite value has the scale NaN, and a block whose scale would be subnormal has the scale 0; in both,
// every q is 0. Blocks of values whose smallest foot would be subnormal have no feet. ecsq_layout.h describes the payload.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "ecsq_layout.h"
#include "gradwire/entropy.h"
#include "gradwire/format.h"
#include "gradwire/target.h"
#include "kernels/bits.h"
#include "kernels/ecsq.h"
#include "kernels/norms.h"
#include "sections.h"

namespace gradwire {

namespace {

constexpr std::uint16_t kNanScale = kQuietNanBits >> 16;
constexpr std::uint16_t kSmallestScale = 0x0080;     // 2^-126
constexpr std::uint16_t kSmallestWithFeet = 0x0880;  // 2^-110
constexpr std::uint16_t kLargestScale = 0x7F00;      // 2^127

// The sum of squares is finite if and only if all values are. The rounding error of the product with 1 / scale is
// covered, because the scale is smaller than step * RMS by the factor 1 - 2^-8, and |x| <= 256 RMS, so |q| < 2^14.
std::uint16_t scale_of(double sum, std::size_t n, double step) {
  if (!std::isfinite(sum)) return kNanScale;
  const double wanted = step * std::sqrt(sum / static_cast<double>(n)) * (1.0 - 0x1p-8);
  if (wanted >= 0x1p127) return kLargestScale;
  const auto scale = static_cast<std::uint16_t>(bits_of(static_cast<float>(wanted)) >> 16);
  return scale < kSmallestScale ? 0 : scale;
}

bool is_coded(std::uint16_t scale) { return scale != 0 && scale != kNanScale; }

bool has_feet(const Params& params, std::uint16_t scale) {
  return has_feet(params) && scale >= kSmallestWithFeet && scale != kNanScale;
}

float value_of_scale(std::uint16_t scale) { return float_of(static_cast<std::uint32_t>(scale) << 16); }

// One thread's memory, for one section at a time.
struct Workspace {
  std::unique_ptr<std::uint16_t[]> scales;
  std::unique_ptr<std::uint8_t[]> codes;
  std::unique_ptr<std::uint16_t[]> escapes;
  std::unique_ptr<std::uint8_t[]> feet;
  std::unique_ptr<std::uint8_t[]> plane;

  Workspace(std::size_t n, const Params& params)
      : scales(scratch<std::uint16_t>(count_scales(n, block_of(params)))),
        codes(scratch<std::uint8_t>(codes_nbytes(n))),
        escapes(scratch<std::uint16_t>(n + kEcsqSlack)),
        feet(scratch<std::uint8_t>(has_feet(params) ? n + kEcsqSlack : 0)),
        plane(scratch<std::uint8_t>(n)) {}
};

void take_byte(const std::uint16_t* words, std::size_t n, unsigned shift, std::uint8_t* bytes) {
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(words[i] >> shift);
}

std::unique_ptr<std::uint16_t[]> join_bytes(const std::uint8_t* low, const std::uint8_t* high, std::size_t n,
                                            std::size_t slack = 0) {
  auto words = scratch<std::uint16_t>(n + slack);
  for (std::size_t i = 0; i < n; ++i) words[i] = static_cast<std::uint16_t>(low[i] | high[i] << 8);
  return words;
}

struct Beside {
  std::size_t escapes = 0;
  std::size_t feet = 0;
};

// A section's codes and scales before entropy coding.
struct Quantised {
  std::size_t n;
  const std::uint8_t* codes;
  const std::uint16_t* scales;
  const std::uint16_t* escapes;
  const std::uint8_t* feet;
};

void write_values(const Target& target, const Quantised& section, float* out, const Params& params, bool add) {
  const std::size_t block = block_of(params);
  const std::uint16_t* escapes = section.escapes;
  const std::uint8_t* feet = section.feet;
  for (std::size_t at = 0; at < section.n; at += block) {
    const std::uint16_t word = section.scales[at / block];
    const float scale = value_of_scale(word);
    const std::size_t count = std::min(block, section.n - at);
    // q is below 2^16, so with a scale below this one, no product overflows. For larger scales, the scalar kernel
    // clamps.
    const EcsqKernels& kernels = scale < 0x1p112F ? *target.ecsq : kEcsqScalar;
    escapes += kernels.from_codes(section.codes + at / 2, escapes, count, scale, out + at, add);
    if (has_feet(params, word)) feet += kernels.add_feet(section.codes + at / 2, feet, count, scale, out + at);
  }
}

// Blocks are handled in groups of this many values, or one by one if they are larger. A group's scales come first, so
// that their computations, which have a long latency, overlap. The values are then in the cache.
constexpr std::size_t kGroup = 4096;

// Fills `own`, and returns the numbers of escapes and feet.
Beside quantise(const Target& target, const float* x, std::size_t n, const Params& params, const Workspace& own) {
  const double step = static_cast<double>(float_of(static_cast<std::uint32_t>(params.a)));
  const std::size_t block = block_of(params);
  const std::size_t group = std::max(block, kGroup);
  Beside found;
  for (std::size_t first = 0; first < n; first += group) {
    const std::size_t end = std::min(first + group, n);
    for (std::size_t at = first; at < end; at += block) {
      const std::size_t count = std::min(block, n - at);
      own.scales[at / block] = scale_of(target.norms->look(x + at, x + at, count), count, step);
    }
    for (std::size_t at = first; at < end; at += block) {
      const std::size_t count = std::min(block, n - at);
      const std::uint16_t scale = own.scales[at / block];
      std::uint8_t* const codes = own.codes.get() + at / 2;
      if (!is_coded(scale)) {
        std::memset(codes, 0, codes_nbytes(count));
        continue;
      }
      const float inverse = 1.0F / value_of_scale(scale);
      found.escapes += target.ecsq->to_codes(x + at, count, inverse, codes, own.escapes.get() + found.escapes);
      if (has_feet(params, scale)) {
        found.feet += target.ecsq->to_feet(x + at, count, inverse, own.feet.get() + found.feet);
      }
    }
  }
  return found;
}

std::size_t encode_section(const Target& target, const float* x, std::size_t n, const Params& params,
                           std::uint8_t* out, const Workspace& own) {
  const Beside found = quantise(target, x, n, params, own);
  const std::size_t scales = count_scales(n, block_of(params));
  std::uint8_t* at = out + head_nbytes(params);
  const auto put = [&](Plane plane, const std::uint8_t* symbols, std::size_t count, Symbols kind = Symbols::kBytes) {
    const std::size_t nbytes = encode_block(target, symbols, count, at, kind);
    if (4 * plane < head_nbytes(params)) store_word(out + 4 * plane, static_cast<std::uint32_t>(nbytes));
    at += nbytes;
  };
  const auto put_byte = [&](Plane plane, const std::uint16_t* words, std::size_t count, unsigned shift) {
    take_byte(words, count, shift, own.plane.get());
    put(plane, own.plane.get(), count);
  };
  take_byte(own.scales.get(), scales, 0, at);
  at += scales;
  put_byte(kScales, own.scales.get(), scales, 8);
  put(kCodes, own.codes.get(), codes_nbytes(n), Symbols::kPairs);
  put_byte(kLow, own.escapes.get(), found.escapes, 0);
  put_byte(kHigh, own.escapes.get(), found.escapes, 8);
  if (has_feet(params)) put(kFeet, own.feet.get(), found.feet);
  return static_cast<std::size_t>(at - out);
}

// Encodes, and calls done(section, workspace) with the number of each encoded section.
template <typename Done>
std::size_t encode_sections(const Target& target, const float* x, std::size_t n, std::uint8_t* out, const Params& params,
                            int threads, const Done& done) {
  const Sections sections = sections_of(n, params);
  const auto hire = [&] {
    return [&, own = Workspace(sections.elements(0), params)](std::size_t i, std::uint8_t* at) {
      const std::size_t nbytes = encode_section(target, x + sections.first(i), sections.elements(i), params, at, own);
      done(i, own);
      return nbytes;
    };
  };
  return write_sections(sections, section_max_nbytes(sections.length, params), threads, out, hire);
}

std::size_t encode(const Target& target, const float* x, std::size_t n, std::uint8_t* out, const Params& params,
                   int threads) {
  return encode_sections(target, x, n, out, params, threads, [](std::size_t, const Workspace&) {});
}

// The values are decoded from the codes in memory: entropy decoding, the larger part of the work, is lossless and
// skipped.
std::size_t encode_finished(const Target& target, float* x, std::size_t n, std::uint8_t* out, const Params& params,
                            float divisor, bool& finite, int threads) {
  const Sections sections = sections_of(n, params);
  std::atomic<bool> all{true};
  const auto adopt = [&](std::size_t i, const Workspace& own) {
    float* const to = x + sections.first(i);
    const std::size_t count = sections.elements(i);
    const Quantised section{count, own.codes.get(), own.scales.get(), own.escapes.get(), own.feet.get()};
    write_values(target, section, to, params, false);
    if (!target.norms->finish(to, count, divisor)) all.store(false, std::memory_order_relaxed);
  };
  const std::size_t nbytes = encode_sections(target, x, n, out, params, threads, adopt);
  finite = all.load(std::memory_order_relaxed);
  return nbytes;
}

// The parts of a section, located before anything is written.
struct Section {
  std::size_t n = 0;
  std::uint8_t* codes = nullptr;
  const std::uint8_t* low_scales = nullptr;
  const std::uint8_t* planes[kFeet + 2] = {};
  std::size_t feet_count = 0;
  std::unique_ptr<std::uint16_t[]> scales;
  std::unique_ptr<std::uint16_t[]> escapes;
  std::unique_ptr<std::uint8_t[]> feet;

  Quantised quantised() const { return {n, codes, scales.get(), escapes.get(), feet.get()}; }

  Block plane(Plane index, std::uint8_t* symbols, std::size_t count, Symbols kind = Symbols::kBytes) const {
    return {planes[index], static_cast<std::size_t>(planes[index + 1] - planes[index]), symbols, count, kind};
  }
};

// Locates the parts of a section, and returns the fault, or null.
const char* open_section(const std::uint8_t* from, std::size_t nbytes, const Params& params, Section& section) {
  const std::size_t scales = count_scales(section.n, block_of(params));
  std::size_t used = head_nbytes(params) + scales;
  if (nbytes < used) return "the block sizes or scales of a section are truncated";
  section.low_scales = from + head_nbytes(params);
  section.planes[0] = from + used;
  for (std::size_t i = 0; 4 * i < head_nbytes(params); ++i) {
    used += load_word<std::uint32_t>(from + 4 * i);
    if (used > nbytes) return "the block sizes of a section do not add up";
    section.planes[i + 1] = from + used;
  }
  section.planes[count_planes(params)] = from + nbytes;
  return nullptr;
}

bool is_scale(std::uint16_t scale) {
  return scale == 0 || scale == kNanScale || (scale >= kSmallestScale && scale <= kLargestScale);
}

const char* read_scales(const Target& target, const Params& params, Section& section) {
  const std::size_t count = count_scales(section.n, block_of(params));
  const auto high = scratch<std::uint8_t>(count);
  if (const char* reason = decode_block(target, section.plane(kScales, high.get(), count))) return reason;
  section.scales = join_bytes(section.low_scales, high.get(), count);
  const bool valid = std::all_of(section.scales.get(), section.scales.get() + count, is_scale);
  return valid ? nullptr : "a scale is invalid";
}

const char* read_escapes(const Target& target, Section& section) {
  const std::size_t count = target.ecsq->count(section.codes, codes_nbytes(section.n), kFirstEscape);
  const auto bytes = scratch<std::uint8_t>(2 * count);
  const Block low = section.plane(kLow, bytes.get(), count);
  const Block high = section.plane(kHigh, bytes.get() + count, count);
  if (const char* reason = decode_two_blocks(target, low, high)) return reason;
  section.escapes = join_bytes(low.symbols, high.symbols, count, kEcsqSlack);
  return nullptr;
}

// Returns the number of zeros among the codes of blocks with feet.
std::size_t count_feet(const Target& target, const Section& section, const Params& params) {
  const std::size_t block = block_of(params);
  std::size_t count = 0;
  for (std::size_t at = 0; at < section.n; at += block) {
    if (!has_feet(params, section.scales[at / block])) continue;
    const std::size_t values = std::min(block, section.n - at);
    count += target.ecsq->count(section.codes + at / 2, codes_nbytes(values), 0) - values % 2;
  }
  return count;
}

bool are_feet(const std::uint8_t* feet, std::size_t count) {
  std::uint8_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, feet[i]);
  return largest <= kMostFoot;
}

// Decodes one block of each of one or two sections.
template <typename BlockOf>
const char* decode_each(const Target& target, Section* sections, std::size_t count, const BlockOf& block_of) {
  if (count == 1) return decode_block(target, block_of(sections[0]));
  return decode_two_blocks(target, block_of(sections[0]), block_of(sections[1]));
}

// Reads one or two opened sections, because two at a time take less time than one after the other.
const char* read_opened(const Target& target, const Params& params, Section* sections, std::size_t count) {
  const auto codes_of = [](Section& each) {
    return each.plane(kCodes, each.codes, codes_nbytes(each.n), Symbols::kPairs);
  };
  if (const char* reason = decode_each(target, sections, count, codes_of)) return reason;
  for (std::size_t i = 0; i < count; ++i) {
    Section& each = sections[i];
    if (each.n % 2 == 1 && each.codes[each.n / 2] >> 4 != 0) return "the unused half of its last code is not zero";
    if (const char* reason = read_scales(target, params, each)) return reason;
    if (const char* reason = read_escapes(target, each)) return reason;
    if (!has_feet(params)) continue;
    each.feet_count = count_feet(target, each, params);
    each.feet = scratch<std::uint8_t>(each.feet_count + kEcsqSlack);
  }
  if (!has_feet(params)) return nullptr;
  const auto feet_of = [](Section& each) { return each.plane(kFeet, each.feet.get(), each.feet_count); };
  if (const char* reason = decode_each(target, sections, count, feet_of)) return reason;
  for (std::size_t i = 0; i < count; ++i) {
    if (!are_feet(sections[i].feet.get(), sections[i].feet_count)) return "a foot is invalid";
  }
  return nullptr;
}

// Decodes, and calls done(out, n) for each decoded section.
template <typename Done>
const char* decode_sections(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out,
                            std::size_t n, const Params& params, bool add, int threads, const Done& done) {
  const Sections sections = sections_of(n, params);
  const auto codes = scratch<std::uint8_t>(codes_nbytes(n));
  std::vector<Section> read(sections.count());
  const auto read_some = [&](std::size_t first, std::size_t count, const Starts& starts) {
    for (std::size_t i = first; i < first + count; ++i) {
      read[i].n = sections.elements(i);
      read[i].codes = codes.get() + sections.first(i) / 2;
      const char* const reason = open_section(payload + starts[i], starts[i + 1] - starts[i], params, read[i]);
      if (reason != nullptr) return reason;
    }
    return read_opened(target, params, &read[first], count);
  };
  if (const char* reason = read_groups<2>(sections, threads, payload, nbytes, read_some)) return reason;
  const auto write = [&](std::size_t i) {
    float* const to = out + sections.first(i);
    write_values(target, read[i].quantised(), to, params, add);
    done(to, read[i].n);
  };
  for_each_section(sections, threads, [&] { return write; });
  return nullptr;
}

const char* decode(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out, std::size_t n,
                   const Params& params, bool add, int threads) {
  return decode_sections(target, payload, nbytes, out, n, params, add, threads, [](float*, std::size_t) {});
}

const char* decode_finished(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out,
                            std::size_t n, const Params& params, float divisor, bool& finite, int threads) {
  std::atomic<bool> all{true};
  const auto divide = [&](float* x, std::size_t count) {
    if (!target.norms->finish(x, count, divisor)) all.store(false, std::memory_order_relaxed);
  };
  const char* const fault = decode_sections(target, payload, nbytes, out, n, params, false, threads, divide);
  finite = all.load(std::memory_order_relaxed);
  return fault;
}

constexpr Finishing kFinishing = {.encode = encode_finished, .decode = decode_finished};

}  // namespace

extern const Format kEcsqFormat;
const Format kEcsqFormat = {
    .name = "ecsq",
    .max_nbytes = max_nbytes,
    .encode = encode,
    .decode = decode,
    .finishing = &kFinishing,
};

}  // namespace gradwire
