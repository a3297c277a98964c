// Frames from and to an interface, through a packet socket that the caller has opened and bound, with PACKET_VNET_HDR and
// PACKET_AUXDATA.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <optional>
#include <vector>

#include "counters.h"
#include "engine.h"
#include "faults.h"

namespace gradwire::nic {

// Waits until a descriptor is ready, `due` has come, or `stop` is readable; returns false for the last.
bool wait_for(int descriptor, short events, int stop, std::optional<Clock::time_point> due);

class Inbox {
 public:
  explicit Inbox(int descriptor);

  // Receives all waiting frames, and calls take(Frame) for each.
  template <typename Take>
  void receive(const Take& take) {
    const int received = fill();
    for (int i = 0; i < received; ++i) {
      if (const auto frame = frame_at(i)) take(*frame);
    }
  }

 private:
  int fill();
  std::optional<Frame> frame_at(int index);

  int descriptor_;
  std::vector<Byte> memory_;
  std::vector<Offload> offloads_;
  std::vector<iovec> parts_;
  std::vector<mmsghdr> messages_;
  std::vector<Byte> control_;
};

class Outbox {
 public:
  Outbox(int descriptor, int stop, Counters& counters);

  void add(const Byte* data, std::size_t size, const Offload& offload);

  // Sends all frames, and waits for room if needed. Drops frames that the interface refuses. Returns false when
  // stopped.
  bool flush();

 private:
  struct Entry {
    std::size_t at;
    std::size_t size;
    Offload offload;
  };

  int send(std::size_t first);

  int descriptor_;
  int stop_;
  Counters& counters_;
  std::vector<Byte> memory_;
  std::size_t used_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace gradwire::nic
