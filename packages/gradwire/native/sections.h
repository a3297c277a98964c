// A payload of sections of variable size that threads write and read on their own: a directory of 32-bit sizes, then
// the sections.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "gradwire/parallel.h"
#include "kernels/bits.h"

namespace gradwire {

// n elements in sections of `length`, of which the last may have less.
struct Sections {
  std::size_t n;
  std::size_t length;

  std::size_t count() const { return n / length + (n % length != 0 ? 1 : 0); }
  std::size_t directory_nbytes() const { return 4 * count(); }
  std::size_t first(std::size_t index) const { return index * length; }
  std::size_t elements(std::size_t index) const { return std::min(length, n - first(index)); }
};

// Memory that is written before it is read; zeros would cost a pass.
template <typename T>
std::unique_ptr<T[]> scratch(std::size_t size) {
  return std::unique_ptr<T[]>(new T[size]);
}

// Calls work(first, count) for every kSize sections, or the fewer at the end of a thread's part, on several threads, each
// with a work of its own from hire(), so that what it needs for a section at a time is there once.
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

// The same with work(index) for every section.
template <typename Hire>
void for_each_section(const Sections& sections, int threads, const Hire& hire) {
  for_each_group<1>(sections, threads, [&] {
    return [work = hire()](std::size_t index, std::size_t /*count*/) mutable { work(index); };
  });
}

// Each part of the sections is written where it would start if all before it had `most_nbytes`, one after the other, and
// then moves down. The encode(index, at) of hire() returns the size of a section. Returns the bytes used.
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

// The starts of the sections of a payload, and one more for their end.
using Starts = std::vector<std::size_t>;

// decode(first, count, starts) returns null or what is wrong with `count` sections, at most kSize. Returns the reason of
// the first that has one.
template <std::size_t kSize, typename Decode>
const char* read_groups(const Sections& sections, int threads, const std::uint8_t* payload, std::size_t nbytes,
                        const Decode& decode) {
  const std::size_t count = sections.count();
  if (nbytes / 4 < count) return "it ends within its directory";
  Starts starts(count + 1);
  starts[0] = sections.directory_nbytes();
  for (std::size_t i = 0; i < count; ++i) starts[i + 1] = starts[i] + load_word<std::uint32_t>(payload + 4 * i);
  if (starts[count] != nbytes) return "its directory announces another number of bytes";
  std::vector<const char*> reasons(count);
  for_each_group<kSize>(sections, threads, [&] {
    return [&](std::size_t first, std::size_t some) { reasons[first] = decode(first, some, starts); };
  });
  const auto wrong = std::find_if(reasons.begin(), reasons.end(), [](const char* reason) { return reason != nullptr; });
  return wrong == reasons.end() ? nullptr : *wrong;
}

// The same with decode(index, from, nbytes) for every section.
template <typename Decode>
const char* read_sections(const Sections& sections, int threads, const std::uint8_t* payload, std::size_t nbytes,
                          const Decode& decode) {
  const auto decode_one = [&](std::size_t i, std::size_t /*count*/, const Starts& starts) {
    return decode(i, payload + starts[i], starts[i + 1] - starts[i]);
  };
  return read_groups<1>(sections, threads, payload, nbytes, decode_one);
}

}  // namespace gradwire
