// Links that several streams share approximately fairly, as TCP connections share a bottleneck.
//
// Between two ranks, frames are sent one after the other. Frames of different pairs share a common link: every stream
// gets its max-min fair share of all links on its path (Bertsekas and Gallager, Data Networks, section 6.5.2), or
// somewhat less if other streams from the same host began earlier. Rates change only when a stream begins or ends, and
// only for streams that share a link with that stream, directly or through other streams. For a ring, whose streams
// share no link, the cost of the computation is therefore linear in the number of frames.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace gradwire::replay {

// The number of bytes that each connection keeps in the host's queue (TCP small queues). A new stream waits for them.
constexpr double kQueuedNbytes = 1 << 16;
// The weight of a new stream relative to its host's earlier streams, because its TCP window isn't open yet. The weight is
// between 0 and 1 (equal shares), and was measured in testbeds.
constexpr double kNewcomer = 0.6;

struct Stream;

// One direction of a link, or of a core link between groups. All streams through the port share its rate, which is
// infinite if the port is never a bottleneck. After an idle time, `burst_nbytes` pass without delay, like the token
// bucket of a rate limiter.
struct Port {
  explicit Port(double rate, double burst = 0.0) : nbytes_per_s(rate), burst_nbytes(burst), credit_nbytes(burst) {}

  // The seconds that all bytes so far take at the port's rate, without bursts.
  double busy_s() const { return carried_nbytes / nbytes_per_s; }
  // Adds the burst credit for the idle time that ends now.
  void earn(double now_s);

  double nbytes_per_s;
  double burst_nbytes;
  double credit_nbytes;
  double idle_since_s = 0.0;
  double carried_nbytes = 0.0;
  std::vector<Stream*> streams;                    // in the order in which they began
  std::vector<std::pair<Stream*, double>> held;    // streams that wait for queued bytes, and their bytes
};

// The frames from one rank to another over the same ports, of which the first is the sender's.
struct Stream {
  explicit Stream(const std::vector<Port*>& passed);

  // Returns the time at which a frame sent now may enter, after the queued bytes of other streams. A frame enters after
  // all earlier frames of its stream that are in flight or on hold. Streams that begin at the same time, such as streams
  // of lanes, enter one after the other: a host has one queue.
  double hold(double now_s, double nbytes);
  // Returns the remaining bytes of the stream's first frame.
  double left_nbytes(double now_s) const;
  // Returns the stream's share of a port's rate, relative to other streams.
  double weight() const;
  // Returns the time at which the stream's first frame will have passed, if rates don't change.
  double ends_s() const { return since_s + (remaining > 0 ? remaining / rate : 0.0); }

  Port* home;
  std::vector<Port*> ports;  // without the infinitely fast ones
  std::deque<std::pair<std::size_t, double>> frames;  // their numbers and sizes
  double remaining = 0.0;
  double rate = 0.0;
  double since_s = 0.0;
  double begun_s = 0.0;
  double held_s = 0.0;
  std::size_t version = 0;
};

// Is called with the time at which a stream's first frame will have passed, the stream, and the stream's version.
using Schedule = std::function<void(double, Stream&, std::size_t)>;

// All streams of a replay.
class Streams {
 public:
  explicit Streams(Schedule schedule) : schedule_(std::move(schedule)) {}

  // Adds a frame to a stream.
  void push(Stream& stream, std::size_t frame, double nbytes, double now_s);
  // Removes and returns a stream's first frame; nothing if rates have changed since the frame was scheduled.
  std::optional<std::size_t> pass_first(Stream& stream, std::size_t version, double now_s);

 private:
  void begin(Stream& stream, double now_s);
  void end(Stream& stream, double now_s);
  void share(const std::vector<Stream*>& streams, double now_s);
  void announce(Stream& stream);

  Schedule schedule_;
};

}  // namespace gradwire::replay
