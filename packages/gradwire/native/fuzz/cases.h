// Every compiled format with the parameters that the fuzzers try.
#pragma once

#include <vector>

#include "gradwire/format.h"

namespace gradwire::fuzz {

struct Case {
  const Format* format;
  Params params;
};

// The cases of each format. Throws std::runtime_error for a registered format without parameters here, so that none
// is forgotten.
std::vector<std::vector<Case>> all_cases();

// One of them; formats are equally likely, however many parameters they have.
inline const Case& pick(const std::vector<std::vector<Case>>& cases, std::size_t first, std::size_t second) {
  const std::vector<Case>& of_format = cases[first % cases.size()];
  return of_format[second % of_format.size()];
}

}  // namespace gradwire::fuzz
