// The software NIC: two interfaces, and a thread for each direction between them.
#pragma once

#include <array>
#include <thread>

#include "engine.h"
#include "faults.h"

namespace gradwire::nic {

class Nic {
 public:
  // Starts the threads. The descriptors are packet sockets (port.h), which the caller owns. The faults apply to frames
  // that this NIC sends to the link.
  Nic(int host, int link, const Codec& codec, unsigned tos, bool merges, const FaultSettings& faults);
  ~Nic() { stop(); }
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  // Ends the threads, and drops the frames that they still hold. May be called repeatedly.
  void stop();

  std::uint64_t count(bool to_link, std::size_t which) { return engine_.counters(to_link)[which]; }

 private:
  void run(bool to_link, int from, int to, const FaultSettings& settings);

  Engine engine_;
  int stop_;
  std::array<std::thread, 2> threads_;
};

}  // namespace gradwire::nic
