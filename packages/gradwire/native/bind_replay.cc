// The Python binding of the replay of exchanges.
#include "bind_replay.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "replay/replay.h"

namespace nb = nanobind;

namespace gradwire {

namespace {

// The address of a rank's rows of actions, their length, and the number of distinct segments.
using OrderTuple = std::tuple<std::uintptr_t, std::size_t, std::size_t>;
// The fields of `replay::Line`, `replay::Point` and `replay::Host`.
using LineTuple = std::tuple<double, double, double, double>;
using FiveNumbers = std::tuple<double, double, double, double, double>;
// The fields of `replay::Cost`.
using CostTuple = std::tuple<double, double, double, double, double, double, std::size_t>;

template <typename Made, typename Given>
Made made_of(const Given& fields) {
  return std::apply([](const auto&... each) { return Made{each...}; }, fields);
}

template <typename Made, typename Given>
std::vector<Made> all_of(const std::vector<Given>& rows) {
  std::vector<Made> made;
  for (const Given& each : rows) made.push_back(made_of<Made>(each));
  return made;
}

std::pair<std::vector<CostTuple>, double> replay_exchange(
    const std::vector<OrderTuple>& orders, const std::vector<LineTuple>& lines, const std::vector<FiveNumbers>& points,
    double call_s, bool exact, const FiveNumbers& host, double header_nbytes,
    const std::vector<std::size_t>& group_sizes, double core_nbytes_per_s, std::size_t first_terms, std::size_t lanes,
    std::size_t ahead, std::size_t cores, std::size_t ranks_per_machine) {
  replay::Setting setting{{},
                          all_of<replay::Line>(lines),
                          all_of<replay::Point>(points),
                          call_s,
                          exact,
                          made_of<replay::Host>(host),
                          header_nbytes,
                          group_sizes,
                          core_nbytes_per_s,
                          first_terms,
                          lanes,
                          ahead,
                          cores,
                          ranks_per_machine};
  for (const auto& [address, length, segments] : orders) {
    const auto* const actions = reinterpret_cast<const engine::Action*>(address);
    setting.orders.push_back({actions, length / engine::kRowLength, segments});
  }
  replay::Replay found;
  {
    const nb::gil_scoped_release release;
    found = replay::replay(setting);
  }
  std::vector<CostTuple> costs;
  for (const replay::Cost& each : found.ranks) {
    costs.emplace_back(each.encode_s, each.decode_s, each.handling_s, each.wait_s, each.raw_nbytes, each.wire_nbytes,
                       each.frames);
  }
  return {std::move(costs), found.line_busy_s};
}

}  // namespace

void bind_replay(nb::module_& m) { m.def("replay", &replay_exchange); }

}  // namespace gradwire
