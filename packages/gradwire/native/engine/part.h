// A part of a run: the values with one codec, and how these values are encoded, measured, and copied.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>

#include "actions.h"
#include "coder.h"
#include "errors.h"
#include "frame.h"
#include "parameters.h"
#include "gradwire/format.h"
#include "gradwire/losses.h"

namespace gradwire::engine {

struct Codec {
  const Format* format;  // null if a Coder has the codec
  Params params;
  Params of_sums;  // the parameters of the codec that encodes finished sums
  std::uint8_t id;
  std::uint32_t fingerprint;
  bool exact;

  // Whether a payload consists of the same bytes as its floats in memory.
  bool is_plain() const {
    const bool keeps_all = format == find_format("pack") && params.a == 32 && of_sums.a == 32;
    return std::endian::native == std::endian::little && keeps_all && exact;
  }
};

struct Part {
  float* values;
  Codec codec;
  Errors errors;
  Copies copies;
  Coder* coder = nullptr;                        // null if the engine encodes and decodes this part
  std::map<std::size_t, std::size_t> most = {};  // with a coder: a payload's largest size by the number of values

  // Returns a segment's values: in the bucket if they are contiguous there, else in a copy.
  float* values_of(const Action& action) const {
    float* const place = copies.place_of(action.start, action.stop);
    return place != nullptr ? place : values + action.start;
  }
  std::size_t most_nbytes(std::size_t count) const {
    return coder != nullptr ? most.at(count) : codec.format->max_nbytes(count, codec.params);
  }
  // Returns the largest size of a payload of up to `count` values.
  std::size_t most_nbytes_up_to(std::size_t count) const {
    std::size_t found = most_nbytes(count);
    for (const auto& each : most) found = std::max(found, each.second);
    return found;
  }

  const Params& params_of(const Action& action) const {
    return action.what == Do::publish ? codec.of_sums : codec.params;
  }

  // Returns whether an action replaces its segment with decoded values without measuring their error.
  bool is_adopted(const Action& action) const {
    return action.what == Do::publish && !codec.exact && !errors.are_measured();
  }

  Header header_of(const Action& action, std::uint16_t flags, std::uint32_t sequence) const {
    return {codec.id, flags, static_cast<std::uint32_t>(action.count()), codec.fingerprint, sequence};
  }

  Payload payload_of(const Byte* frame, std::size_t nbytes) const {
    return {*codec.format, codec.params, frame + kHeaderNbytes, nbytes};
  }

  // Copies a segment's values from the bucket, unless they are used in place.
  void bring(const Action& action) const {
    if (is_copied(action)) copies.bring(values, action.start, action.stop);
  }

  // Copies a segment's final values to the bucket, unless they are used in place.
  void take_back(const Action& action) const {
    if (is_copied(action)) copies.take_back(values, action.start, action.stop);
  }

  bool is_copied(const Action& action) const {
    return copies.bucket != nullptr && copies.place_of(action.start, action.stop) == nullptr;
  }
};

}  // namespace gradwire::engine
