// Faults on purpose: frames that are lost, late, or overtaken by the ones behind them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "counters.h"
#include "engine.h"

namespace gradwire::nic {

using Clock = std::chrono::steady_clock;

struct FaultSettings {
  double drop = 0;     // the share of frames that are lost
  double reorder = 0;  // the share that waits until others have passed
  double delay_s = 0;  // for every frame
  std::uint64_t seed = 0;

  bool any() const { return drop > 0 || reorder > 0 || delay_s > 0; }
};

class Faults {
 public:
  Faults(const FaultSettings& settings, Counters& counters) : settings_(settings), counters_(counters), state_(settings.seed) {}

  // Passes the frame on at once, or keeps it, or loses it.
  void take(const Byte* data, std::size_t size, const Offload& offload, const Emit& emit);

  // Passes on what is due.
  void release(const Emit& emit);

  // Returns the time at which the next frame is due, if any is kept.
  std::optional<Clock::time_point> next() const;

 private:
  struct Kept {
    Clock::time_point due;
    std::uint64_t number;
    std::vector<Byte> data;
    Offload offload;

    bool operator<(const Kept& other) const {  // the queue's top is its largest
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  bool happens(double share);

  const FaultSettings settings_;
  Counters& counters_;
  std::uint64_t state_;
  std::uint64_t number_ = 0;
  std::priority_queue<Kept> kept_;
};

}  // namespace gradwire::nic
