// The network card: two interfaces, and a thread for each direction between them.
#pragma once

#include <array>
#include <thread>

#include "engine.h"
#include "faults.h"

namespace gradwire::nic {

class Nic {
 public:
  // The descriptors are those of packet sockets (port.h) and stay the caller's. The faults are those of the link: of
  // what this NIC sends to it. Starts at once.
  Nic(int host, int link, const Codec& codec, unsigned tos, bool merges, const FaultSettings& faults);
  ~Nic() { stop(); }
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  // Ends the threads; what they still held is lost. May be called again.
  void stop();

  std::uint64_t count(bool to_link, std::size_t which) { return engine_.counters(to_link)[which]; }

 private:
  void run(bool to_link, int from, int to, const FaultSettings& settings);

  Engine engine_;
  int stop_;
  std::array<std::thread, 2> threads_;
};

}  // namespace gradwire::nic
