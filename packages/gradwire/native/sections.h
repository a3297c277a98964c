// Payloads of variable-size sections, which threads write and read independently: a directory of 32-bit sizes, then the
// sections.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "gradwire/parallel.h"
#include "kernels/bits.h"

namespace gradwire {

// The division of n elements into sections of `length`; the last may be shorter.
struct Sections {
  std::size_t n;
  std::size_t length;

  std::size_t count() const { return n / length + (n % length != 0 ? 1 : 0); }
  std::size_t directory_nbytes() const { return 4 * count(); }
  std::size_t first(std::size_t index) const { return index * length; }
  std::size_t elements(std::size_t index) const { return std::min(length, n - first(index)); }
};

// Memory that is written before it is read. Initialising it would cost a pass.
template <typename T>
std::unique_ptr<T[]> scratch(std::size_t size) {
  return std::unique_ptr<T[]>(new T[size]);
}

// Calls work(first, count) for every kSize sections, or fewer at the end of a thread's part, on several threads. Each
// thread gets its own work from hire(), which owns the memory for one section at a time.
template <std::size_t kSize, typename Hire>
void for_each_group(const Sections& sections, int threads, const Hire& hire) {
  const std::size_t count = sections.count();
  if (count == 0) return;
  const int wanted = count_parts(sections.n, threads);
  const int parts = static_cast<std::size_t>(wanted) < count ? wanted : static_cast<int>(count);
  run_parts(parts, [&](int index) {
    const Part part = part_of(count, parts, index, 1);
    auto&& work = hire();
    for (std::size_t i = part.begin; i < part.end; i += kSize) work(i, std::min(kSize, part.end - i));
  });
}

// Calls work(index) for every section, in the same way.
template <typename Hire>
void for_each_section(const Sections& sections, int threads, const Hire& hire) {
  for_each_group<1>(sections, threads, [&] {
    return [work = hire()](std::size_t index, std::size_t /*count*/) mutable { work(index); };
  });
}

// Writes each part of the sections where it would start if all preceding sections took `most_nbytes`, and then moves it
// to its place. The encode(index, at) from hire() returns a section's size. Returns the number of bytes used.
template <typename Hire>
std::size_t write_sections(const Sections& sections, std::size_t most_nbytes, int threads, std::uint8_t* out,
                           const Hire& hire) {
  std::uint8_t* const data = out + sections.directory_nbytes();
  const std::size_t count = sections.count();
  std::vector<const std::uint8_t*> starts(count);
  for_each_section(sections, threads, [&] {
    return [&, encode = hire(), at = static_cast<std::uint8_t*>(nullptr)](std::size_t index) mutable {
      if (at == nullptr) at = data + index * most_nbytes;
      starts[index] = at;
      const std::size_t nbytes = encode(index, at);
      store_word(out + 4 * index, static_cast<std::uint32_t>(nbytes));
      at += nbytes;
    };
  });
  std::uint8_t* end = data;
  for (std::size_t index = 0; index < count; ++index) {
    const auto nbytes = load_word<std::uint32_t>(out + 4 * index);
    if (starts[index] != end) std::memmove(end, starts[index], nbytes);
    end += nbytes;
  }
  return static_cast<std::size_t>(end - out);
}

// The starts of a payload's sections, and the end of the last one.
using Starts = std::vector<std::size_t>;

// Calls decode(first, count, starts), which returns null or the fault of up to kSize sections. Returns the first fault.
template <std::size_t kSize, typename Decode>
const char* read_groups(const Sections& sections, int threads, const std::uint8_t* payload, std::size_t nbytes,
                        const Decode& decode) {
  const std::size_t count = sections.count();
  if (nbytes / 4 < count) return "its section sizes are truncated";
  Starts starts(count + 1);
  starts[0] = sections.directory_nbytes();
  for (std::size_t i = 0; i < count; ++i) starts[i + 1] = starts[i] + load_word<std::uint32_t>(payload + 4 * i);
  if (starts[count] != nbytes) return "its section sizes do not add up";
  std::vector<const char*> reasons(count);
  for_each_group<kSize>(sections, threads, [&] {
    return [&](std::size_t first, std::size_t some) { reasons[first] = decode(first, some, starts); };
  });
  const auto wrong = std::find_if(reasons.begin(), reasons.end(), [](const char* reason) { return reason != nullptr; });
  return wrong == reasons.end() ? nullptr : *wrong;
}

// Calls decode(index, from, nbytes) for every section, in the same way.
template <typename Decode>
const char* read_sections(const Sections& sections, int threads, const std::uint8_t* payload, std::size_t nbytes,
                          const Decode& decode) {
  const auto decode_one = [&](std::size_t i, std::size_t /*count*/, const Starts& starts) {
    return decode(i, payload + starts[i], starts[i + 1] - starts[i]);
  };
  return read_groups<1>(sections, threads, payload, nbytes, decode_one);
}

}  // namespace gradwire
