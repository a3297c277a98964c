#include "inputs.h"

#include <bit>
#include <cmath>
#include <utility>

#include "gradwire/parallel.h"

namespace gradwire::fuzz {

namespace {

constexpr float kNan = std::bit_cast<float>(0x7FC00000U);
constexpr float kSignalingNan = std::bit_cast<float>(0xFF800001U);
constexpr float kInfinity = std::bit_cast<float>(0x7F800000U);

float signed_power_of_two(Random& random) {
  const float power = std::ldexp(1.0F, static_cast<int>(random.below(277)) - 149);
  return random.one_in(2) ? power : -power;
}

// Returns a number in [-1, 1), more often near 0.
float peaked(Random& random) {
  const double u = static_cast<double>(random.next() >> 11) * 0x1p-53 * 2.0 - 1.0;
  return static_cast<float>(u * u * u);
}

float random_value(Random& random, std::size_t kind, float scale) {
  switch (kind) {
    case 0: return std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    case 1: return peaked(random) * 0x1p-8F;
    case 2: return peaked(random) * scale;
    case 3: return static_cast<float>(static_cast<int>(random.below(520)) - 260) * 0.5F * scale;  // ties
    case 4: return random.one_in(4) ? peaked(random) : 0.0F;
    case 5: return signed_power_of_two(random);
    default: return std::bit_cast<float>(0x7F7FFFFFU - static_cast<std::uint32_t>(random.below(1 << 20)));  // huge
  }
}

}  // namespace

std::size_t random_length(Random& random) {
  if (random.one_in(512)) return 2 * kMinPartElements + random.below(2 * kMinPartElements);
  if (random.one_in(8)) return random.below(6000);
  return random.below(200);
}

Buffer<float> random_chunk(Random& random, std::size_t n) {
  Buffer<float> chunk(n, random.below(4));
  const std::size_t kind = random.below(7);
  const float scale = signed_power_of_two(random);
  for (std::size_t i = 0; i < n; ++i) chunk[i] = random_value(random, kind, scale);
  if (n > 0 && random.one_in(3)) {
    const float guests[] = {kNan, kSignalingNan, kInfinity, -kInfinity, -0.0F, std::bit_cast<float>(1U)};
    for (std::size_t count = random.below(4); count > 0; --count) chunk[random.below(n)] = guests[random.below(6)];
  }
  return chunk;
}

Buffer<std::uint8_t> mutated(Random& random, const Buffer<std::uint8_t>& payload) {
  constexpr std::uint8_t kEdges[] = {0x00, 0x01, 0x55, 0x7F, 0x80, 0xAA, 0xFE, 0xFF};
  const std::size_t before = payload.size();
  std::size_t after = before;
  if (random.one_in(4)) after = random.one_in(2) ? random.below(before + 1) : before + 1 + random.below(40);
  Buffer<std::uint8_t> bytes(after, random.below(8));
  for (std::size_t i = 0; i < after; ++i) bytes[i] = i < before ? payload[i] : static_cast<std::uint8_t>(random.next());
  if (after == 0) return bytes;
  // Half of the changes are in the first bytes, where exponents, scales, and tags are.
  const auto place = [&] { return random.below(random.one_in(2) && after > 16 ? 16 : after); };
  switch (random.below(5)) {
    case 0:
      for (std::size_t hits = 1 + random.below(8); hits > 0; --hits) {
        bytes[place()] ^= static_cast<std::uint8_t>(1U << random.below(8));
      }
      break;
    case 1: bytes[place()] = kEdges[random.below(8)]; break;
    case 2:
      for (std::size_t i = place(); i < after && !random.one_in(24); ++i) {
        bytes[i] = static_cast<std::uint8_t>(random.next());
      }
      break;
    case 3: std::swap(bytes[place()], bytes[place()]); break;
    default:
      for (std::size_t i = 0; i < after; ++i) bytes[i] = static_cast<std::uint8_t>(random.next());
  }
  return bytes;
}

}  // namespace gradwire::fuzz
