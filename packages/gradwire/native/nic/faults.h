// Injected faults: frames that are dropped, delayed, or reordered.
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
  double drop = 0;     // the share of dropped frames
  double reorder = 0;  // the share of frames that are sent after later ones
  double delay_s = 0;  // for every frame
  std::uint64_t seed = 0;

  bool any() const { return drop > 0 || reorder > 0 || delay_s > 0; }
};

class Faults {
 public:
  Faults(const FaultSettings& settings, Counters& counters) : settings_(settings), counters_(counters), state_(settings.seed) {}

  // Passes on the frame immediately, keeps it for later, or drops it.
  void take(const Byte* data, std::size_t size, const Offload& offload, const Emit& emit);

  // Passes on all frames that are due.
  void release(const Emit& emit);

  // Returns the time at which the next kept frame is due, if any.
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
