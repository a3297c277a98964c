// A format: the encoding of a chunk of float32 as a payload, and its decoding. It uses only pointers and lengths, no
// Python and no torch.
//
// - The scalar kernels are the definition. Every target and every number of threads gives the same bytes.
// - `encode` may write anywhere in out[0 .. max_nbytes(n)), but not past it, and returns the payload's size.
// - `decode` checks the whole payload before it writes anything, so an invalid payload leaves `out` unchanged. It never
//   reads outside payload[0 .. nbytes), and never writes outside out[0 .. n), whatever the bytes are. It returns
//   nullptr, or the fault as a static sentence fragment.
// - Pointers need only the alignment of their types; `payload` and `out` (encode) need none.
// - The caller sets the floating-point environment to its default (see float_environment.h): round to nearest,
//   subnormals kept. Nothing here may be compiled with contraction or fast-math.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// Up to three numbers, whose meaning is documented in each format's file.
struct Params {
  std::int32_t a = 0;
  std::int32_t b = 0;
  std::int32_t c = 0;
};

// The functions that decode ranges of a payload independently, for formats in which a value's position doesn't depend
// on other values.
struct Ranges {
  // Returns the same fault as `decode`, or null.
  const char* (*find_fault)(const Target& target, const std::uint8_t* payload, std::size_t nbytes, std::size_t n,
                            const Params& params, int threads);
  // Ranges begin at multiples of this number, and end at one or with the chunk.
  std::size_t (*granule)(const Params& params);
  // Decodes values [begin, end) of n from a valid payload to out[0 .. end - begin).
  void (*decode)(const Target& target, const std::uint8_t* payload, std::size_t n, std::size_t begin, std::size_t end,
                 const Params& params, float* out, bool add);
  // Encodes values [begin, end) of n, from x[0 .. end - begin), to their place in a payload of max_nbytes(n) bytes.
  // Null if a value's place or encoding depends on other ranges.
  void (*encode)(const Target& target, const float* x, std::size_t n, std::size_t begin, std::size_t end,
                 const Params& params, std::uint8_t* payload) = nullptr;
};

// The functions that finish sums, which divide values while they are in the cache. `finite` says whether all quotients
// are finite.
struct Finishing {
  // Encodes x, and replaces it with the decoded payload, divided.
  std::size_t (*encode)(const Target& target, float* x, std::size_t n, std::uint8_t* out, const Params& params,
                        float divisor, bool& finite, int threads);
  // Decodes and divides.
  const char* (*decode)(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out, std::size_t n,
                        const Params& params, float divisor, bool& finite, int threads);
};

struct Format {
  const char* name;
  std::size_t (*max_nbytes)(std::size_t n, const Params& params);
  std::size_t (*encode)(const Target& target, const float* x, std::size_t n, std::uint8_t* out,
                        const Params& params, int threads);
  const char* (*decode)(const Target& target, const std::uint8_t* payload, std::size_t nbytes, float* out,
                        std::size_t n, const Params& params, bool add, int threads);
  const Ranges* ranges = nullptr;        // null for formats without ranges
  const Finishing* finishing = nullptr;  // null unless faster than decoding a payload and dividing
};

// Returns null if no format has this name.
const Format* find_format(const char* name);

// Returns all formats, terminated by a null pointer.
const Format* const* all_formats();

}  // namespace gradwire
