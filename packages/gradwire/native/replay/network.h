// The links of a replay's ranks, and the core links between groups of ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "replay.h"
#include "streams.h"

namespace gradwire::replay {

// Returns whether a rank sends and receives in the same step, as in a ring.
inline bool is_both_ways(const Order& order) {
  std::set<std::int64_t> sends;
  for (std::size_t i = 0; i < order.count; ++i) {
    if (!order.actions[i].receives()) sends.insert(order.actions[i].step);
  }
  return std::any_of(order.actions, order.actions + order.count, [&sends](const engine::Action& each) {
    return each.receives() && sends.count(each.step) > 0;
  });
}

// The links of all ranks, and the core links between groups.
class Network {
 public:
  explicit Network(const Setting& setting) {
    for (std::size_t rank = 0; rank < setting.orders.size(); ++rank) {
      const Line& line = setting.lines[rank];
      const double share = is_both_ways(setting.orders[rank]) ? line.duplex_share : 1.0;
      latency_s_.push_back(line.latency_s);
      out_.emplace_back(line.nbytes_per_s * share, line.burst_nbytes);
      in_.emplace_back(line.nbytes_per_s * share, line.burst_nbytes);
    }
    for (std::size_t group = 0; group < setting.group_sizes.size(); ++group) {
      group_.insert(group_.end(), setting.group_sizes[group], group);
      up_.emplace_back(setting.core_nbytes_per_s);
      down_.emplace_back(setting.core_nbytes_per_s);
    }
  }

  // Returns the latency between two ranks, which is the higher latency of the ranks' two links.
  double latency_s(std::size_t sender, std::size_t receiver) const {
    return std::max(latency_s_[sender], latency_s_[receiver]);
  }

  // Returns a lane's stream between two ranks, over their links and the core links between them.
  Stream& stream(std::size_t sender, std::size_t receiver, std::size_t lane) {
    std::unique_ptr<Stream>& found = streams_[{sender, receiver, lane}];
    if (!found) {
      std::vector<Port*> ports{&out_[sender], &in_[receiver]};
      if (group_[sender] != group_[receiver]) {
        ports.insert(ports.end(), {&up_[group_[sender]], &down_[group_[receiver]]});
      }
      found = std::make_unique<Stream>(ports);
    }
    return *found;
  }

  // Returns the largest number of seconds that the bytes of a link or core link take at its rate.
  double busiest_s() const {
    double found = 0.0;
    for (const auto* ports : {&out_, &in_, &up_, &down_}) {
      for (const Port& port : *ports) found = std::max(found, port.busy_s());
    }
    return found;
  }

 private:
  std::vector<double> latency_s_;
  std::deque<Port> out_, in_, up_, down_;  // a deque's elements keep their addresses
  std::vector<std::size_t> group_;
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, std::unique_ptr<Stream>> streams_;
};

}  // namespace gradwire::replay
