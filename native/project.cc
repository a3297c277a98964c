// Block after block is encoded into memory that stays in the cache, and decoded from there.
#include "gradwire/project.h"

#include <algorithm>
#include <vector>

#include "gradwire/parallel.h"
#include "gradwire/target.h"

namespace gradwire {

namespace {

constexpr std::size_t kBlock = 4096;

void project_part(const Target& target, const Format& format, const float* x, float* out, std::size_t n,
                  const Params& params) {
  std::vector<std::uint8_t> payload(format.max_nbytes(std::min(n, kBlock), params));
  for (std::size_t at = 0; at < n; at += kBlock) {
    const std::size_t count = std::min(n - at, kBlock);
    const std::size_t used = format.encode(target, x + at, count, payload.data(), params, 1);
    format.decode(target, payload.data(), used, out + at, count, params, false, 1);
  }
}

}  // namespace

void project(const Target& target, const Format& format, const float* x, float* out, std::size_t n,
             const Params& params, int threads) {
  const int parts = count_parts(n, threads);
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, kBlock);
    project_part(target, format, x + part.begin, out + part.begin, part.end - part.begin, params);
  });
}

}  // namespace gradwire
