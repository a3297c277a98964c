// Compares golden vectors with the results of every target of this machine, for machines without Python, such as
// emulated ones. Standard input has one line per vector, in the format of scripts/golden_lines.py:
//
//   FORMAT A B C INPUT PAYLOAD DECODED      the last three as hexadecimal, INPUT and DECODED as words of floats
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "engines.h"
#include "gradwire/float_environment.h"
#include "gradwire/format.h"
#include "kernels/bits.h"

namespace {

using namespace gradwire;

struct Vector {
  const Format* format;
  Params params;
  std::vector<float> input;
  std::vector<std::uint8_t> payload;
  std::vector<float> decoded;
};

std::vector<std::uint8_t> bytes_of(const std::string& digits) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<float> floats_of(const std::string& digits) {
  std::vector<float> floats;
  for (std::size_t i = 0; i < digits.size(); i += 8) {
    floats.push_back(float_of(static_cast<std::uint32_t>(std::stoul(digits.substr(i, 8), nullptr, 16))));
  }
  return floats;
}

Vector parse(const std::string& line) {
  std::istringstream words(line);
  std::string name;
  std::string input;
  std::string payload;
  std::string decoded;
  Vector vector{};
  if (!(words >> name >> vector.params.a >> vector.params.b >> vector.params.c >> input >> payload >> decoded)) {
    throw std::runtime_error("not a golden vector: " + line);
  }
  vector.format = find_format(name.c_str());
  if (vector.format == nullptr) throw std::runtime_error("no format is called " + name);
  vector.input = floats_of(input);
  vector.payload = bytes_of(payload);
  vector.decoded = floats_of(decoded);
  return vector;
}

// The sign and the payload of a computed NaN depend on the processor.
bool same_floats(const std::vector<float>& left, const std::vector<float>& right) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const bool nan = left[i] != left[i] && right[i] != right[i];
    if (!nan && bits_of(left[i]) != bits_of(right[i])) return false;
  }
  return true;
}

bool encodes(const Vector& vector, const Target& target) {
  const std::size_t n = vector.input.size();
  std::vector<std::uint8_t> out(vector.format->max_nbytes(n, vector.params));
  out.resize(vector.format->encode(target, vector.input.data(), n, out.data(), vector.params, 1));
  return out == vector.payload;
}

bool decodes(const Vector& vector, const Target& target) {
  std::vector<float> out(vector.decoded.size(), 7.0F);
  const char* const fault = vector.format->decode(target, vector.payload.data(), vector.payload.size(), out.data(),
                                                  out.size(), vector.params, false, 1);
  return fault == nullptr && same_floats(out, vector.decoded);
}

int run() {
  std::vector<Vector> vectors;
  for (std::string line; std::getline(std::cin, line);) vectors.push_back(parse(line));
  if (vectors.empty()) throw std::runtime_error("no golden vectors came; write some to standard input");
  int faults = 0;
  for (const fuzz::Engine& engine : fuzz::engines(0)) {
    const Target& target = *engine.target;
    for (const Vector& vector : vectors) {
      const bool encoded = encodes(vector, target);
      if (encoded && decodes(vector, target)) continue;
      faults += 1;
      std::fprintf(stderr, "%s(%d, %d, %d) on %s %s other bits than the golden vector has\n", vector.format->name,
                   vector.params.a, vector.params.b, vector.params.c, target.name, encoded ? "decodes to" : "encodes to");
    }
    std::printf("%zu golden vectors on %s\n", vectors.size(), target.name);
  }
  return faults == 0 ? 0 : 1;
}

}  // namespace

int main() {
  const FloatEnvironment environment;
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
