// All compiled formats, with the parameters for the fuzzers.
#pragma once

#include <vector>

#include "gradwire/format.h"

namespace gradwire::fuzz {

struct Case {
  const Format* format;
  Params params;
};

// Returns the cases of each format. Throws std::runtime_error for a registered format without parameters here, so that
// no format is omitted.
std::vector<std::vector<Case>> all_cases();

// Returns a random case. Formats are equally likely, whatever their number of parameters.
inline const Case& pick(const std::vector<std::vector<Case>>& cases, std::size_t first, std::size_t second) {
  const std::vector<Case>& of_format = cases[first % cases.size()];
  return of_format[second % of_format.size()];
}

}  // namespace gradwire::fuzz
