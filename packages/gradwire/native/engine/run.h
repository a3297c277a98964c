// One run of a schedule, frame by frame, without the interpreter: encode, send, receive, validate, decode.
//
// gradwire/exchange/walk.py is the definition: this run has the same frames, order of frames, windows, and waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "actions.h"
#include "connection.h"
#include "part.h"
#include "pool.h"
#include "waiter.h"

namespace gradwire::engine {

struct Request {
  const Action* actions;
  std::size_t count;
  std::vector<Part> parts;
  std::size_t segment_count;  // the largest number of values of a segment
  std::size_t segments;       // the number of distinct segments
  std::uint16_t flags;
  float ranks;  // the divisor of a sum
  double timeout_s;
  int threads;
};

// The result for the values of one codec.
struct PartOutcome {
  bool finite = true;
  bool lost_finite = true;
  std::uint64_t raw_nbytes = 0;
};

// The result of a run, and its costs as in gradwire/costs.py.
struct Outcome {
  Status status = Status::done;
  std::size_t action = 0;  // the failed action
  Fault fault;
  std::vector<PartOutcome> parts;
  double encode_s = 0.0;
  double decode_s = 0.0;
  double wait_s = 0.0;
  std::uint64_t frames = 0;
  std::uint64_t wire_nbytes = 0;
  std::vector<Byte> refused;         // the refused frame
  std::vector<std::size_t> posted;  // posted receives that no action has used, as indices of actions
};

class Engine {
 public:
  Engine() : incoming_(kMostFrameNbytes) {}

  // Runs a schedule over connections that have no frames in flight at the beginning. `is_interrupted`, which may be
  // empty, is called regularly during waits. After a failure, the peers' connections still hold the frames in flight.
  Outcome run(const Request& request, std::vector<Peer>& peers, Activity& activity,
              const std::function<bool()>& is_interrupted);

 private:
  friend class Run;

  Pool& outgoing_of(std::size_t nbytes);

  Pool incoming_;
  std::map<std::size_t, Pool> outgoing_;  // by size
};

}  // namespace gradwire::engine
