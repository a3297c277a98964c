#include "cases.h"

#include <bit>
#include <stdexcept>
#include <string>

namespace gradwire::fuzz {

namespace {

std::vector<Params> errbound_params() {
  std::vector<Params> all;
  for (const int exponent : {1, 64, 117, 121, 238, 239, 253}) all.push_back({.a = exponent});
  for (const float share : {0.05F, 1.0F}) {
    for (const int block : {0, 64, 1024, 65536}) {
      all.push_back({.a = 0, .b = std::bit_cast<std::int32_t>(share), .c = block});
    }
  }
  return all;
}

std::vector<Params> inceptionn_params() {
  std::vector<Params> all;
  for (const int exponent : {107, 110, 117, 121, 126}) all.push_back({.a = exponent});
  for (const int exponent : {113, 117, 121, 126}) all.push_back({.a = exponent, .b = 1});
  return all;
}

std::vector<Params> pack_params() {
  std::vector<Params> all;
  for (int bits = 1; bits <= 32; ++bits) all.push_back({.a = bits});
  return all;
}

std::vector<Params> quantize_params() {
  std::vector<Params> all;
  for (const int bits : {8, 4}) {
    for (const int block : {16, 48, 1024, 65536}) all.push_back({.a = bits, .b = block});
  }
  return all;
}

std::vector<Params> bfp_params() {
  std::vector<Params> all;
  for (int mantissa_bits = 1; mantissa_bits <= 15; ++mantissa_bits) {
    for (const int block : {8, 16, 1024}) all.push_back({.a = mantissa_bits, .b = block});
  }
  for (const int block : {24, 32, 48}) all.push_back({.a = 7, .b = block});
  return all;
}

std::vector<Params> fp8_params() {
  std::vector<Params> all;
  for (const int block : {16, 48, 256, 65536}) all.push_back({.a = block});
  return all;
}

std::vector<Params> ecsq_params() {
  std::vector<Params> all;
  for (const float step : {0x1p-5F, 0.5F, 1.0F, 4.0F}) {
    for (const int block : {64, 1024, 65536}) {
      for (const int foot : {0, 1}) all.push_back({.a = std::bit_cast<std::int32_t>(step), .b = block, .c = foot});
    }
  }
  return all;
}

std::vector<Params> params_of(const std::string& name) {
  if (name == "errbound") return errbound_params();
  if (name == "inceptionn") return inceptionn_params();
  if (name == "pack") return pack_params();
  if (name == "quantize") return quantize_params();
  if (name == "bfp") return bfp_params();
  if (name == "fp8") return fp8_params();
  if (name == "ecsq") return ecsq_params();
  if (name == "fp16" || name == "bf16") return {Params{}};
  if (name == "terngrad") return {Params{}, Params{.a = -5, .b = 7}};
  throw std::runtime_error("the format " + name + " has no parameters to fuzz; add them to native/fuzz/cases.cc");
}

}  // namespace

std::vector<std::vector<Case>> all_cases() {
  std::vector<std::vector<Case>> all;
  for (const Format* const* format = all_formats(); *format != nullptr; ++format) {
    all.emplace_back();
    for (const Params& params : params_of((*format)->name)) all.back().push_back({*format, params});
  }
  return all;
}

}  // namespace gradwire::fuzz
