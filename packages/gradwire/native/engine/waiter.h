// The waits of a run. While the run waits for one connection, frames on all connections move.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "connection.h"

namespace gradwire::engine {

struct Peer {
  std::int64_t rank;
  Connection connection;
  std::uint32_t next_sent;      // the sequence number of the next frame to send
  std::uint32_t next_received;  // the sequence number of the next frame to receive
};

// The outcome of a run, or of a wait. After `interrupted`, the caller or the coder has the error.
enum class Status { done, frame_refused, payload_refused, link_failed, timed_out, interrupted };

class Waiter {
 public:
  // `is_interrupted`, which may be empty, is called regularly during waits.
  Waiter(std::vector<Peer>& peers, Activity& activity, double timeout_s, const std::function<bool()>& is_interrupted)
      : peers_(peers), activity_(activity), timeout_s_(timeout_s), is_interrupted_(is_interrupted) {}

  // Moves all frames that can move until is_done() is true, or fault_of() returns a fault.
  template <typename IsDone, typename FaultOf>
  Status wait(Connection& own, const IsDone& is_done, const FaultOf& fault_of) {
    const double began = now_s();
    for (;;) {
      send_due_keepalives();
      own.push(activity_);
      own.pull(false, activity_);
      if (is_done()) return Status::done;
      if (fault_of()) return Status::link_failed;
      const double left_s = move_others(own, began);
      if (left_s <= 0) return Status::timed_out;
      if (!is_done()) sleep(left_s);
      if (was_interrupted_) return Status::interrupted;
    }
  }

 private:
  void send_due_keepalives();
  // Moves frames on the other connections, and returns the remaining seconds.
  double move_others(Connection& own, double began);
  // Sleeps until a frame can move, but at most `left_s` seconds.
  void sleep(double left_s);
  void look_for_interrupts();

  std::vector<Peer>& peers_;
  Activity& activity_;
  double timeout_s_;
  const std::function<bool()>& is_interrupted_;
  std::vector<pollfd> awaited_;
  bool was_interrupted_ = false;
  double looked_s_ = now_s();
};

}  // namespace gradwire::engine
