#include "check_lossless.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "engines.h"
#include "gradwire/delta.h"
#include "gradwire/entropy.h"
#include "inputs.h"

namespace gradwire::fuzz {

namespace {

using Bytes = Buffer<std::uint8_t>;

constexpr int kMutations = 8;

[[noreturn]] void fail(const char* what, std::size_t n, const Engine& engine, const char* reason) {
  throw Failure(std::string(what) + " of " + std::to_string(n) + " on " + engine.target->name + " with " +
                std::to_string(engine.threads) + " thread(s): " + reason);
}

// Returns symbols with one value, few values, a skewed distribution, or a uniform one.
Bytes random_symbols(Random& random, std::size_t n) {
  Bytes symbols(n, random.below(8));
  const std::size_t alphabet = std::size_t{1} << random.below(9);
  const std::size_t first = random.below(256);
  const std::size_t skew = random.below(5);
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t symbol = random.below(alphabet);
    for (std::size_t k = 0; k < skew; ++k) symbol = random.below(symbol + 1);
    symbols[i] = static_cast<std::uint8_t>(first + symbol);
  }
  return symbols;
}

Bytes cut(const Bytes& out, std::size_t nbytes, Random& random) {
  Bytes payload(nbytes, random.below(8));
  payload.copy_from(out.data(), nbytes);
  return payload;
}

Bytes encode_symbols(const Engine& engine, const Bytes& symbols, Random& random) {
  const std::size_t n = symbols.size();
  Bytes out(entropy_max_nbytes(n), random.below(8));
  const std::size_t nbytes = entropy_encode(*engine.target, symbols.data(), n, out.data(), engine.threads);
  if (nbytes > out.size()) fail("symbols", n, engine, "the payload is larger than entropy_max_nbytes");
  return cut(out, nbytes, random);
}

std::optional<Bytes> decode_symbols(const Engine& engine, const Bytes& payload, std::size_t n, Random& random) {
  Bytes out(n, random.below(8));
  const char* const reason =
      entropy_decode(*engine.target, payload.data(), payload.size(), out.data(), n, engine.threads);
  if (reason != nullptr) return std::nullopt;
  return out;
}

struct Weights {
  Words words;
  Bytes base;
};

Bytes encode_delta(const Engine& engine, Words words, const Buffer<float>& masters, Bytes& base, bool code,
                   Random& random) {
  const std::size_t n = masters.size();
  Bytes out(delta_max_nbytes(words, n), random.below(8));
  const std::size_t nbytes = delta_encode(*engine.target, words, masters.data(), base.data(), n, out.data(), code,
                                          engine.threads);
  if (nbytes > out.size()) fail("weights", n, engine, "the body is larger than delta_max_nbytes");
  return cut(out, nbytes, random);
}

std::optional<Bytes> apply_delta(const Engine& engine, const Weights& weights, const Bytes& body, std::size_t n) {
  Bytes after = weights.base;
  const char* const reason = delta_apply(*engine.target, weights.words, body.data(), body.size(), after.data(), n,
                                         false, engine.threads);
  if (reason == nullptr) return after;
  if (!after.same_bits(weights.base)) fail("weights", n, engine, "an invalid delta changed the weights");
  return std::nullopt;
}

// Returns weights near the masters, so that differences are small, or arbitrary weights.
Weights random_weights(Random& random, const Buffer<float>& masters) {
  const Words words = random.one_in(4) ? Words::fp32 : Words::bf16;
  const std::size_t size = words == Words::bf16 ? 2 : 4;
  Weights weights{words, Bytes(size * masters.size(), size * random.below(2))};
  for (std::size_t i = 0; i < weights.base.size(); ++i) {
    weights.base[i] = static_cast<std::uint8_t>(random.next());
  }
  if (random.one_in(4)) return weights;
  const std::size_t reach = 2 + random.below(7);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &masters[i], 4);
    bits += static_cast<std::uint32_t>(random.below(reach)) << (size == 2 && !random.one_in(3) ? 16 : 0);
    std::memcpy(weights.base.data() + size * i, reinterpret_cast<std::uint8_t*>(&bits) + 4 - size, size);
  }
  return weights;
}

}  // namespace

Verdicts check_entropy(Random& random) {
  const std::size_t n = random_length(random);
  const Bytes symbols = random_symbols(random, n);
  const std::vector<Engine> all = engines(n);
  const Bytes payload = encode_symbols(all[0], symbols, random);
  for (const Engine& engine : all) {
    if (!encode_symbols(engine, symbols, random).same_bits(payload)) fail("symbols", n, engine, "the payload differs");
    const auto decoded = decode_symbols(engine, payload, n, random);
    if (!decoded || !decoded->same_bits(symbols)) fail("symbols", n, engine, "decoded symbols differ");
  }
  Verdicts verdicts;
  for (int i = 0; i < kMutations; ++i) {
    const Bytes wrong = mutated(random, payload);
    const auto expected = decode_symbols(all[0], wrong, n, random);
    (expected ? verdicts.accepted : verdicts.refused) += 1;
    for (const Engine& engine : all) {
      const auto decoded = decode_symbols(engine, wrong, n, random);
      if (decoded.has_value() != expected.has_value()) fail("symbols", n, engine, "targets disagree on validity");
      if (expected && !decoded->same_bits(*expected)) fail("symbols", n, engine, "symbols differ from the scalar ones");
    }
  }
  return verdicts;
}

Verdicts check_delta(Random& random) {
  const std::size_t n = random_length(random);
  const Buffer<float> masters = random_chunk(random, n);
  const Weights weights = random_weights(random, masters);
  const bool code = !random.one_in(3);
  const std::vector<Engine> all = engines(n);
  Bytes after = weights.base;
  const Bytes body = encode_delta(all[0], weights.words, masters, after, code, random);
  for (const Engine& engine : all) {
    Bytes other = weights.base;
    if (!encode_delta(engine, weights.words, masters, other, code, random).same_bits(body)) {
      fail("weights", n, engine, "the delta differs");
    }
    if (!other.same_bits(after)) fail("weights", n, engine, "the base after encoding differs");
    const auto applied = apply_delta(engine, weights, body, n);
    if (!applied || !applied->same_bits(after)) fail("weights", n, engine, "decoded weights differ");
    if (hash64(*engine.target, after.data(), after.size(), engine.threads) !=
        hash64(*all[0].target, after.data(), after.size(), 1)) {
      fail("weights", n, engine, "the hash differs");
    }
  }
  Verdicts verdicts;
  for (int i = 0; i < kMutations; ++i) {
    const Bytes wrong = mutated(random, body);
    const auto expected = apply_delta(all[0], weights, wrong, n);
    (expected ? verdicts.accepted : verdicts.refused) += 1;
    for (const Engine& engine : all) {
      const auto applied = apply_delta(engine, weights, wrong, n);
      if (applied.has_value() != expected.has_value()) fail("weights", n, engine, "targets disagree on validity");
      if (expected && !applied->same_bits(*expected)) fail("weights", n, engine, "weights differ from the scalar ones");
    }
  }
  return verdicts;
}

}  // namespace gradwire::fuzz
