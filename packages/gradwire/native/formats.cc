// The table of compiled formats, with one row for each.
#include <cstring>

#include "gradwire/format.h"

namespace gradwire {

extern const Format kErrboundFormat;
extern const Format kInceptionnFormat;
extern const Format kPackFormat;
extern const Format kQuantizeFormat;
extern const Format kBfpFormat;
extern const Format kFp8Format;
extern const Format kFp16Format;
extern const Format kBf16Format;
extern const Format kTerngradFormat;
extern const Format kEcsqFormat;

namespace {

const Format* const kFormats[] = {
    &kErrboundFormat,
    &kInceptionnFormat,
    &kPackFormat,
    &kQuantizeFormat,
    &kBfpFormat,
    &kFp8Format,
    &kFp16Format,
    &kBf16Format,
    &kTerngradFormat,
    &kEcsqFormat,
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
