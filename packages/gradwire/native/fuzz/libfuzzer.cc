// The entry point for Clang's libFuzzer. The input's first bytes choose a format, its parameters and the number of
// elements; the rest is the payload.
#include <cstdio>
#include <cstdlib>

#include "check.h"
#include "gradwire/float_environment.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradwire::fuzz;
  static const std::vector<std::vector<Case>> cases = all_cases();
  constexpr std::size_t kHead = 4;
  if (size < kHead) return -1;
  const gradwire::FloatEnvironment environment;
  const Case& chosen = pick(cases, data[0], data[1]);
  const std::size_t n = data[2] | static_cast<std::size_t>(data[3]) << 8;
  Buffer<std::uint8_t> payload(size - kHead, data[2] % 8);
  payload.copy_from(data + kHead, size - kHead);
  Random random(size);
  try {
    check_decode(chosen, payload, n, random);
  } catch (const Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    std::abort();
  }
  return 0;
}
