// The measurement of a run's costs.
#pragma once

#include "connection.h"

namespace gradwire::engine {

// A timer that adds its lifetime in seconds to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), began_(now_s()) {}
  ~Stopwatch() { total_ += now_s() - began_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  double began_;
};

}  // namespace gradwire::engine
