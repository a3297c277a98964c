// The positions of a bucket's parameters in the exchanged values, as gradwire/exchange/views.py defines them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gradwire::engine {

// The copies between a bucket and the exchanged values, in which each parameter is padded with zeros. A range of values
// within one parameter isn't copied.
struct Copies {
  float* bucket = nullptr;  // null without copies
  const std::int64_t* starts = nullptr;   // positions in the bucket
  const std::int64_t* counts = nullptr;   // numbers of values
  const std::int64_t* borders = nullptr;  // positions in the exchanged values, and their end
  std::size_t parameters = 0;

  // Returns the address of the exchanged values [start, stop) in the bucket, or null if these values need a copy.
  float* place_of(std::int64_t start, std::int64_t stop) const {
    if (bucket == nullptr) return nullptr;
    const std::ptrdiff_t number = parameter_of(start);
    const auto all = static_cast<std::ptrdiff_t>(parameters);
    if (number < 0 || number >= all || stop > borders[number] + counts[number]) return nullptr;
    return bucket + starts[number] + (start - borders[number]);
  }

  // Copies the exchanged values [start, stop) from the bucket to `values`.
  void bring(float* values, std::int64_t start, std::int64_t stop) const {
    for_each_part(start, stop, [&](std::int64_t from, std::int64_t to, std::int64_t count, std::int64_t zeros) {
      std::copy_n(bucket + from, count, values + to);
      std::fill_n(values + to + count, zeros, 0.0F);
    });
  }

  // Copies the exchanged values [start, stop) from `values` to the bucket.
  void take_back(const float* values, std::int64_t start, std::int64_t stop) const {
    for_each_part(start, stop, [&](std::int64_t to, std::int64_t from, std::int64_t count, std::int64_t /*zeros*/) {
      std::copy_n(values + from, count, bucket + to);
    });
  }

 private:
  // Returns the index of the parameter that contains a position, in its values or its padding.
  std::ptrdiff_t parameter_of(std::int64_t position) const {
    return std::upper_bound(borders, borders + parameters, position) - borders - 1;
  }

  // Calls work(position in the bucket, position in the exchanged values, number of values, number of zeros) for each
  // parameter's part of the range.
  template <typename Work>
  void for_each_part(std::int64_t start, std::int64_t stop, const Work& work) const {
    const auto all = static_cast<std::ptrdiff_t>(parameters);
    for (std::ptrdiff_t number = parameter_of(start); number < all && borders[number] < stop; ++number) {
      const std::int64_t border = borders[number];
      const std::int64_t first = std::max<std::int64_t>(start - border, 0);
      const std::int64_t last = std::min(stop, borders[number + 1]) - border;
      if (last <= first) continue;
      const std::int64_t count = std::max<std::int64_t>(std::min(last, counts[number]) - first, 0);
      work(starts[number] + first, border + first, count, last - first - count);
    }
  }
};

}  // namespace gradwire::engine
