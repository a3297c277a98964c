// Links that several streams share approximately fairly, as TCP connections share a bottleneck.
//
// Between two ranks, frames are sent one after the other. Frames between different pairs of ranks share the links that
// their paths have in common. Every stream gets its max-min fair share of all links on its path (Bertsekas and Gallager,
// Data Networks, section 6.5.2), or somewhat less if other streams from the same host began earlier. Rates change only
// when a stream begins or ends, and only for streams that share a link with that stream, directly or through other
// streams. The streams of a ring share no link, so the computation for a ring is linear in the number of frames.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace gradwire::replay {

// The most bytes that a connection keeps in its host's queue (TCP small queues). A new stream waits for the queued bytes
// of all other streams.
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

  // Returns the seconds that all bytes so far take at the port's rate, without bursts.
  double busy_s() const { return carried_nbytes / nbytes_per_s; }
  // Adds the burst credit for the idle time that ends now.
  void earn(double now_s);

  double nbytes_per_s;
  double burst_nbytes;
  double credit_nbytes;
  double idle_since_s = 0.0;
  double carried_nbytes = 0.0;
  std::vector<Stream*> streams;                    // in the order in which they began
  std::vector<std::pair<Stream*, double>> held;    // the streams that wait for queued bytes, and each stream's own bytes
};

// The frames in flight from one rank to another rank, and the ports that all of them pass, the sender's port first.
struct Stream {
  explicit Stream(const std::vector<Port*>& passed);

  // Returns the time at which a frame that is sent now may enter the stream: after the queued bytes of other streams, and
  // after all earlier frames of this stream that are in flight or on hold. Streams that begin at the same time, such as
  // streams of lanes, enter one after the other, because a host has one queue.
  double hold(double now_s, double nbytes);
  // Returns the remaining bytes of the stream's first frame.
  double left_nbytes(double now_s) const;
  // Returns the stream's weight, in proportion to which streams share a port's rate.
  double weight() const;
  // Returns the time at which the stream's first frame will have passed all ports, if rates don't change.
  double ends_s() const { return since_s + (remaining > 0 ? remaining / rate : 0.0); }

  Port* home;
  std::vector<Port*> ports;  // without infinitely fast ports
  std::deque<std::pair<std::size_t, double>> frames;  // number and size of each frame
  double remaining = 0.0;
  double rate = 0.0;
  double since_s = 0.0;
  double begun_s = 0.0;
  double held_s = 0.0;
  std::size_t version = 0;
};

// A function that schedules an event, given the time at which a stream's first frame will have passed, the stream, and
// the stream's version.
using Schedule = std::function<void(double, Stream&, std::size_t)>;

// All streams of a replay.
class Streams {
 public:
  explicit Streams(Schedule schedule) : schedule_(std::move(schedule)) {}

  // Adds a frame to a stream.
  void push(Stream& stream, std::size_t frame, double nbytes, double now_s);
  // Removes and returns a stream's first frame, or returns nothing if rates have changed since `version`.
  std::optional<std::size_t> pass_first(Stream& stream, std::size_t version, double now_s);

 private:
  void begin(Stream& stream, double now_s);
  void end(Stream& stream, double now_s);
  void share(const std::vector<Stream*>& streams, double now_s);
  void announce(Stream& stream);

  Schedule schedule_;
};

}  // namespace gradwire::replay
