// Functions that divide a range into parts and process them on several threads. Threads live for one call, so there is
// no global state, and nothing to lose in a fork. Small inputs are processed on the calling thread.
#pragma once

#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#include "gradwire/float_environment.h"

namespace gradwire {

// The smallest number of elements for which a separate thread pays off (it takes about 20 us to start).
inline constexpr std::size_t kMinPartElements = std::size_t{1} << 17;

struct Part {
  std::size_t begin;
  std::size_t end;
};

inline int count_parts(std::size_t n, int threads) {
  const std::size_t most = n / kMinPartElements;
  const std::size_t wanted = threads < 1 ? 1 : static_cast<std::size_t>(threads);
  const std::size_t parts = most < wanted ? most : wanted;
  return parts < 1 ? 1 : static_cast<int>(parts);
}

// Returns the range [begin, end) of part `index` of `parts`. All borders but the last are multiples of `granule`.
inline Part part_of(std::size_t n, int parts, int index, std::size_t granule) {
  const std::size_t granules = (n + granule - 1) / granule;
  const auto border = [&](int i) {
    const std::size_t at = granules * static_cast<std::size_t>(i) / static_cast<std::size_t>(parts) * granule;
    return at < n ? at : n;
  };
  return Part{border(index), border(index + 1)};
}

// Calls work(index) for every index in [0, parts), the first on this thread. If the system can't start a thread, its
// part runs on this thread, too. After all parts, rethrows the first part's exception, such as std::bad_alloc.
template <typename Work>
void run_parts(int parts, const Work& work) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(parts));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(parts));
  const auto run = [&](int index) {
    try {
      work(index);
    } catch (...) {
      errors[static_cast<std::size_t>(index)] = std::current_exception();
    }
  };
  int first_here = parts;
  for (int index = 1; index < parts; ++index) {
    try {
      threads.emplace_back([&run, index] {
        const FloatEnvironment environment;
        run(index);
      });
    } catch (const std::exception&) {
      first_here = index;
      break;
    }
  }
  run(0);
  for (int index = first_here; index < parts; ++index) run(index);
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace gradwire
