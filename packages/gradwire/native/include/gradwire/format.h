// A format: how a chunk of float32 becomes payload bytes and back. Pointers and lengths only: no Python, no torch.
//
// - The scalar kernels are the definition. Every target and every number of threads gives the same bytes.
// - `encode` may write anywhere in out[0 .. max_nbytes(n)), never past it, and returns the payload's size.
// - `decode` checks the whole payload before it writes anything, so a refused payload leaves `out` as it was. It
//   never reads outside payload[0 .. nbytes) and never writes outside out[0 .. n), whatever the bytes are. It
//   returns nullptr, or a static sentence fragment that says what is wrong.
// - No pointer needs any alignment beyond that of its type; `payload` and `out` (encode) need none.
// - The caller sets the floating-point environment to its default (see float_environment.h): round to nearest,
//   subnormals kept. Nothing here may be compiled with contraction or fast-math.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct Target;

// Up to three numbers; each format's file says what they mean.
struct Params {
  std::int32_t a = 0;
  std::int32_t b = 0;
  std::int32_t c = 0;
};

// The functions that decode ranges of a payload one by one, for formats in which no value sets the next one's place.
struct Ranges {
  // Returns the fault that `decode` would return.
  const char* (*find_fault)(const Target& target, const std::uint8_t* payload, std::size_t nbytes, std::size_t n,
                            const Params& params, int threads);
  // Ranges begin at multiples of this, and end there or with the chunk.
  std::size_t (*granule)(const Params& params);
  // Decodes values [begin, end) of n, of a payload without a fault, to out[0 .. end - begin).
  void (*decode)(const Target& target, const std::uint8_t* payload, std::size_t n, std::size_t begin, std::size_t end,
                 const Params& params, float* out, bool add);
  // Encodes values [begin, end) of n, from x[0 .. end - begin), to their place in a payload of max_nbytes(n) bytes. Null
  // where a value's place or meaning depends on other ranges.
  void (*encode)(const Target& target, const float* x, std::size_t n, std::size_t begin, std::size_t end,
                 const Params& params, std::uint8_t* payload) = nullptr;
};

// The functions that finish sums: values are divided while the cache holds them. `finite` says whether all quotients are.
struct Finishing {
  // As `encode`; x becomes what `decode` returns for the payload, divided.
  std::size_t (*encode)(const Target& target, float* x, std::size_t n, std::uint8_t* out, const Params& params,
                        float divisor, bool& finite, int threads);
  // As `decode`, divided.
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
  const Ranges* ranges = nullptr;        // where there are such
  const Finishing* finishing = nullptr;  // where it takes less than decoding a payload and dividing
};

// Null when no format has this name.
const Format* find_format(const char* name);

// All formats, ended by a null pointer.
const Format* const* all_formats();

}  // namespace gradwire
