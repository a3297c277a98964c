#include "check.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "engines.h"

namespace gradwire::fuzz {

namespace {

[[noreturn]] void fail(const Case& chosen, const Engine& engine, std::size_t n, const std::string& what) {
  const Params& p = chosen.params;
  throw Failure(std::string(chosen.format->name) + "(" + std::to_string(p.a) + ", " + std::to_string(p.b) + ", " +
                std::to_string(p.c) + ") of " + std::to_string(n) + " elements on " + engine.target->name + " with " +
                std::to_string(engine.threads) + " thread(s): " + what);
}

Buffer<std::uint8_t> encode(const Case& chosen, const Engine& engine, const Buffer<float>& chunk, Random& random) {
  const std::size_t capacity = chosen.format->max_nbytes(chunk.size(), chosen.params);
  Buffer<std::uint8_t> out(capacity, random.below(8));
  out.fill(static_cast<int>(random.below(256)));  // old content must not matter
  const std::size_t nbytes =
      chosen.format->encode(*engine.target, chunk.data(), chunk.size(), out.data(), chosen.params, engine.threads);
  if (nbytes > capacity) fail(chosen, engine, chunk.size(), "the payload is larger than max_nbytes");
  Buffer<std::uint8_t> payload(nbytes, random.below(8));
  payload.copy_from(out.data(), nbytes);
  return payload;
}

// Returns the decoded chunk, or nothing for an invalid payload, which must leave the memory unchanged.
std::optional<Buffer<float>> decode(const Case& chosen, const Engine& engine, const Buffer<std::uint8_t>& payload,
                                    const Buffer<float>& before, bool add) {
  Buffer<float> out = before;
  const char* const reason = chosen.format->decode(*engine.target, payload.data(), payload.size(), out.data(),
                                                   out.size(), chosen.params, add, engine.threads);
  if (reason == nullptr) return out;
  if (!out.same_bits(before)) fail(chosen, engine, out.size(), "an invalid payload changed the output");
  return std::nullopt;
}

bool is_sum(const Buffer<float>& sum, const Buffer<float>& accumulated, const Buffer<float>& decoded) {
  Buffer<float> expected = accumulated;
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += decoded[i];
  return sum.same_bits(expected);
}

// Finite numbers as large as gradients, because a sum with NaN could keep either operand's payload.
Buffer<float> random_sums(Random& random, std::size_t n) {
  Buffer<float> sums(n, random.below(4));
  for (std::size_t i = 0; i < n; ++i) {
    sums[i] = static_cast<float>(static_cast<std::int32_t>(static_cast<std::uint32_t>(random.next()))) * 0x1p-33F;
  }
  return sums;
}

}  // namespace

Buffer<std::uint8_t> check_encode(const Case& chosen, const Buffer<float>& chunk, Random& random) {
  const std::vector<Engine> all = engines(chunk.size());
  const Buffer<std::uint8_t> payload = encode(chosen, all[0], chunk, random);
  for (const Engine& engine : all) {
    if (!encode(chosen, engine, chunk, random).same_bits(payload)) {
      fail(chosen, engine, chunk.size(), "the payload differs from the scalar one");
    }
  }
  const auto decoded = decode(chosen, all[0], payload, random_sums(random, chunk.size()), false);
  if (!decoded) fail(chosen, all[0], chunk.size(), "the decoder rejects the encoder's own payload");
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    if (!std::isfinite(chunk[i]) && std::isfinite((*decoded)[i])) {
      fail(chosen, all[0], chunk.size(), "a non-finite value became finite");
    }
  }
  return payload;
}

bool check_decode(const Case& chosen, const Buffer<std::uint8_t>& payload, std::size_t n, Random& random) {
  const std::vector<Engine> all = engines(n);
  const Buffer<float> before = random_sums(random, n);
  const auto expected = decode(chosen, all[0], payload, before, false);
  for (const Engine& engine : all) {
    const auto decoded = decode(chosen, engine, payload, before, false);
    const auto sum = decode(chosen, engine, payload, before, true);
    if (decoded.has_value() != expected.has_value() || sum.has_value() != expected.has_value()) {
      fail(chosen, engine, n, "targets disagree on validity");
    }
    if (!expected) continue;
    if (!decoded->same_bits(*expected)) fail(chosen, engine, n, "decoded bits differ from the scalar ones");
    if (!is_sum(*sum, before, *expected)) fail(chosen, engine, n, "decode_add differs from decode and an addition");
  }
  return expected.has_value();
}

void check_crc32c(const Buffer<std::uint8_t>& bytes, Random& random) {
  const auto seed = static_cast<std::uint32_t>(random.next());
  const std::size_t cut = random.below(bytes.size() + 1);
  const std::uint32_t expected = available_targets()[0]->crc32c(bytes.data(), bytes.size(), seed);
  for (const Target* const* target = available_targets(); *target != nullptr; ++target) {
    const std::uint32_t whole = (*target)->crc32c(bytes.data(), bytes.size(), seed);
    const std::uint32_t first = (*target)->crc32c(bytes.data(), cut, seed);
    const std::uint32_t pieces = (*target)->crc32c(bytes.data() + cut, bytes.size() - cut, first);
    if (whole != expected || pieces != expected) {
      throw Failure("crc32c of " + std::to_string(bytes.size()) + " bytes on " + (*target)->name +
                    " differs from the scalar one");
    }
  }
}

}  // namespace gradwire::fuzz
