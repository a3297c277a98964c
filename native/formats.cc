// The table of compiled formats: one row each.
#include <cstring>

#include "gradwire/format.h"

namespace gradwire {

namespace {

const Format* const kFormats[] = {
    nullptr,
};

}  // namespace

const Format* const* all_formats() { return kFormats; }

const Format* find_format(const char* name) {
  for (const Format* const* each = kFormats; *each != nullptr; ++each) {
    if (std::strcmp((*each)->name, name) == 0) return *each;
  }
  return nullptr;
}

}  // namespace gradwire
