// A target: the kernels of one instruction set. Only dispatch.cc queries which targets the CPU can run.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

struct ErrboundKernels;
struct InceptionnKernels;
struct PackKernels;
struct QuantizeKernels;
struct BfpKernels;
struct Fp8Kernels;
struct EcsqKernels;
struct CastKernels;
struct NormKernels;
struct RansKernels;
struct DeltaKernels;

struct Target {
  const char* name;
  bool (*supported)();
  const ErrboundKernels* errbound;
  const InceptionnKernels* inceptionn;
  const PackKernels* pack;
  const QuantizeKernels* quantize;
  const BfpKernels* bfp;
  const Fp8Kernels* fp8;
  const EcsqKernels* ecsq;
  const CastKernels* cast;
  const NormKernels* norms;
  const RansKernels* rans;
  const DeltaKernels* delta;
  // CRC32C (Castagnoli, reflected polynomial 0x82F63B78), continuing from `seed` (0 at the start).
  std::uint32_t (*crc32c)(const std::uint8_t* data, std::size_t nbytes, std::uint32_t seed);
  // See kernels/hash64.h.
  std::uint64_t (*hash64)(const std::uint8_t* data, std::size_t nbytes);
};

// Returns whether the CPU can run a target (dispatch.cc).
bool cpu_runs_scalar();
bool cpu_runs_avx2();
bool cpu_runs_avx512();
bool cpu_runs_neon();
// Whether an avx512 processor also has carry-less products of 64 bytes (VPCLMULQDQ).
bool cpu_multiplies_vectors();

// Returns this machine's targets, slowest first, terminated by a null pointer. The first is scalar.
const Target* const* available_targets();

// Returns the current target, which is the fastest unless set_target has selected another.
const Target& current_target();
bool set_target(const char* name);

}  // namespace gradwire
