#include "errors.h"

#include <algorithm>

#include "gradwire/norms.h"

namespace gradwire::engine {

Loss Errors::measure(const Target& target, const Payload& payload, const Segment& segment, bool adopts, float divisor,
                     std::vector<float>& scratch, int threads) const {
  float* const own = lost == nullptr ? nullptr : lost + segment.start;
  if (payload.format.ranges != nullptr) {
    const RangeSums into{segment.start, borders, ranges, sums, own == nullptr};
    return lose(target, payload, segment.values, own, segment.count, adopts, divisor, into, threads);
  }
  if (own == nullptr) scratch.resize(std::max(scratch.size(), segment.count));
  return measure_whole(target, payload, segment, own == nullptr ? scratch.data() : own, adopts, divisor, threads);
}

// Measures the error in a format without ranges, whose payload is decoded as a whole.
Loss Errors::measure_whole(const Target& target, const Payload& payload, const Segment& segment, float* decoded,
                           bool adopts, float divisor, int threads) const {
  const char* const fault = payload.format.decode(target, payload.data, payload.nbytes, decoded, segment.count,
                                                  payload.params, false, threads);
  if (fault != nullptr) return {fault, 0.0, false};
  const auto add = [&](Pass how, float* x, float* y, std::size_t row) {
    return sum_norms(target, how, x, y, segment.count, segment.start, borders, ranges, sums + row * ranges, threads);
  };
  if (lost == nullptr) {
    add(Pass::look, segment.values, segment.values, 1);
    add(Pass::look, decoded, decoded, 2);
  }
  const double total = add(adopts ? Pass::adopt : Pass::subtract, segment.values, decoded, 0);
  return {nullptr, total, !adopts || finish(target, segment.values, segment.count, divisor, threads)};
}

}  // namespace gradwire::engine
