// Fuzzes every format, the entropy coder, the weight deltas, the NIC's frames, the engine, and scales on every target
// of this machine, and the streams of replays; build it with sanitizers. A failure prints the seed and the round that reproduce it.
//
//   fuzz_formats [--seconds S] [--rounds N] [--seed K] [--first-round R]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>

#include "check.h"
#include "check_engine.h"
#include "check_lossless.h"
#include "check_nic.h"
#include "check_scale.h"
#include "check_streams.h"
#include "gradwire/float_environment.h"
#include "gradwire/target.h"
#include "inputs.h"

// Sanitizers call this before they end the process; without sanitizers, it doesn't exist.
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());

namespace {

using namespace gradwire;
using namespace gradwire::fuzz;

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t first_round = 0;
  std::uint64_t rounds = ~std::uint64_t{0};
  double seconds = 10.0;
};

struct Count {
  std::uint64_t rounds = 0;
  std::uint64_t refused = 0;
  std::uint64_t accepted = 0;
  std::uint32_t crc32c = 0;  // checksum of all encoded payloads, the same on every processor
};

std::uint64_t current_seed = 0;
std::uint64_t current_round = 0;

void print_repeat() {
  std::fprintf(stderr, "repeat with: fuzz_formats --seed %llu --first-round %llu --rounds 1\n",
               static_cast<unsigned long long>(current_seed), static_cast<unsigned long long>(current_round));
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = arguments[i];
    if (i + 1 == count) throw std::runtime_error(name + " needs a value");
    const char* const value = arguments[i + 1];
    if (name == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--first-round") {
      options.first_round = std::strtoull(value, nullptr, 10);
    } else if (name == "--rounds") {
      options.rounds = std::strtoull(value, nullptr, 10);
    } else if (name == "--seconds") {
      options.seconds = std::strtod(value, nullptr);
    } else {
      throw std::runtime_error("unknown option " + name + "; known are --seconds, --rounds, --seed, --first-round");
    }
  }
  return options;
}

void run_round(const Case& chosen, Random& random, Count& count) {
  constexpr int kMutations = 8;
  const std::size_t n = random_length(random);
  const Buffer<float> chunk = random_chunk(random, n);
  const Buffer<std::uint8_t> payload = check_encode(chosen, chunk, random);
  check_crc32c(payload, random);
  count.crc32c = current_target().crc32c(payload.data(), payload.size(), count.crc32c);
  check_decode(chosen, payload, n, random);
  for (int i = 0; i < kMutations; ++i) {
    const std::size_t length = random.one_in(16) ? random.below(2 * n + 2) : n;
    (check_decode(chosen, mutated(random, payload), length, random) ? count.accepted : count.refused) += 1;
  }
  count.rounds += 1;
}

void count_verdicts(const Verdicts& verdicts, Count& count) {
  count.rounds += 1;
  count.refused += verdicts.refused;
  count.accepted += verdicts.accepted;
}

void run(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const std::vector<std::vector<Case>> cases = all_cases();
  std::map<std::string, Count> counts;
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  current_seed = options.seed;
  check_timelines();
  for (std::uint64_t i = 0; i < options.rounds && Clock::now() < end; ++i) {
    current_round = options.first_round + i;
    Random random(Random(options.seed ^ current_round * 0xD1342543DE82EF95U).next());
    if (random.one_in(6)) {
      count_verdicts(check_entropy(random), counts["(entropy)"]);
      continue;
    }
    if (random.one_in(5)) {
      count_verdicts(check_delta(random), counts["(delta)"]);
      continue;
    }
    if (random.one_in(5)) {
      count_verdicts(check_nic(cases, random), counts["(nic)"]);
      continue;
    }
    if (random.one_in(20)) {
      count_verdicts(check_engine(cases, random), counts["(engine)"]);
      continue;
    }
    if (random.one_in(12)) {
      check_scale(random);
      counts["(scale)"].rounds += 1;
      continue;
    }
    if (random.one_in(12)) {
      check_streams(random);
      counts["(streams)"].rounds += 1;
      continue;
    }
    const std::uint64_t format = random.below(1 << 16);  // in this order, whatever the compiler's order of evaluation
    const Case& chosen = pick(cases, format, random.below(1 << 16));
    run_round(chosen, random, counts[chosen.format->name]);
  }
  for (const auto& [name, count] : counts) {
    std::printf("%-11s %9llu rounds %10llu refused %10llu accepted", name.c_str(),
                static_cast<unsigned long long>(count.rounds), static_cast<unsigned long long>(count.refused),
                static_cast<unsigned long long>(count.accepted));
    if (count.crc32c != 0) std::printf("  crc32c %08x", static_cast<unsigned>(count.crc32c));
    std::printf("\n");
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(print_repeat);
  const gradwire::FloatEnvironment environment;
  try {
    run(parse(count, arguments));
  } catch (const Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    print_repeat();
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
