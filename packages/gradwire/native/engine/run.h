// One run of a schedule, frame by frame, without the interpreter: encode, send, receive, validate, decode.
//
// gradwire/exchange/walk.py is the definition: the frames, their order, the windows and the waits are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "connection.h"
#include "errors.h"
#include "frame.h"
#include "parameters.h"
#include "pool.h"
#include "gradwire/format.h"

namespace gradwire::engine {

// The operations of gradwire/collectives/frame_order.py, in its order.
enum class Do : std::int64_t { send_partial, publish, forward, add, store };

// A rank's operation on one frame, as a row of 64-bit integers.
struct Action {
  Do what;
  std::int64_t peer;
  std::int64_t start;
  std::int64_t stop;
  std::int64_t keep;
  std::int64_t step;
  std::int64_t place;
  std::int64_t segment;  // the index of the distinct segment

  bool receives() const { return what == Do::add || what == Do::store; }
  std::size_t count() const { return static_cast<std::size_t>(stop - start); }
};
static_assert(sizeof(Action) == 8 * sizeof(std::int64_t));

struct Codec {
  const Format* format;
  Params params;
  Params of_sums;  // of the codec that encodes finished sums
  std::uint8_t id;
  std::uint32_t fingerprint;
  bool exact;
};

struct Peer {
  std::int64_t rank;
  Connection connection;
  std::uint32_t next_sent;      // the sequence numbers of the next frames
  std::uint32_t next_received;
};

struct Request {
  const Action* actions;
  std::size_t count;
  float* values;
  std::size_t segment_count;  // the largest number of values of a segment
  std::size_t segments;       // the number of distinct segments
  Codec codec;
  std::uint16_t flags;
  float ranks;  // the divisor of a sum
  Errors errors;
  Copies copies;
  double timeout_s;
  int threads;
};

enum class Status { done, frame_refused, payload_refused, link_failed, timed_out, interrupted };

// The result, and the costs as in gradwire/costs.py.
struct Outcome {
  Status status = Status::done;
  std::size_t action = 0;  // the one that failed
  Fault fault;
  bool finite = true;
  bool lost_finite = true;
  double encode_s = 0.0;
  double decode_s = 0.0;
  double wait_s = 0.0;
  std::uint64_t frames = 0;
  std::uint64_t wire_nbytes = 0;
  std::uint64_t raw_nbytes = 0;
  std::vector<Byte> refused;         // the frame
  std::vector<std::size_t> posted;  // the receives that were posted and not taken, as indices of actions
};

class Engine {
 public:
  Engine() : incoming_(kMostFrameNbytes) {}

  // Runs a schedule over connections without frames in flight. `is_interrupted` is called now and then while a wait lasts
  // and may be empty. After a failure, the peers' connections still hold what was in flight.
  Outcome run(const Request& request, std::vector<Peer>& peers, Activity& activity,
              const std::function<bool()>& is_interrupted);

 private:
  friend class Run;

  Pool& outgoing_of(std::size_t nbytes);

  Pool incoming_;
  std::map<std::size_t, Pool> outgoing_;  // by size
};

}  // namespace gradwire::engine
