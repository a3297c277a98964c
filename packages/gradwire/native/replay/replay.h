// Replays an exchange frame by frame, without sending a byte.
//
// Every rank handles frames in the order of the exchange, with the same window of frames in flight and of posted
// receives. A `Setting` contains the costs of frames. The rules are:
//
// - The rank's thread encodes, decodes, sends, and receives frames. Each operation needs a core of the machine, and ranks
//   that share a machine wait for a free core (first come, first served).
// - A frame departs once it has been sent and the frames before it have left the host. The frame stays in the receiver's
//   kernel until the receiver reads it.
// - Streams over one link or core link share its rate fairly (`streams.h`). Bytes that have passed a link arrive after
//   the latency.
// - An idle link passes a burst without delay, like the token bucket of a rate limiter.
// - Lanes exchange one bucket each, concurrently. Each lane has its own streams, and a thread on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../engine/actions.h"

namespace gradwire::replay {

// A codec's cost on sums of a certain number of gradients: payload bytes and seconds, per value.
struct Point {
  double nbytes;
  double carried_nbytes;
  double encode_s;
  double decode_s;
  double decode_add_s;
};

// A host's CPU seconds per frame and per byte. The transport's threads spend `beside_s_per_nbyte`, and the rank's thread
// spends all other seconds.
struct Host {
  double send_s;
  double receive_s;
  double send_s_per_nbyte;
  double receive_s_per_nbyte;
  double beside_s_per_nbyte;
};

// One direction of a link. Each direction reaches `duplex_share` of the rate while the other direction is also busy.
struct Line {
  double latency_s;
  double nbytes_per_s;
  double burst_nbytes;
  double duplex_share;
};

// The order in which a rank handles frames, as actions.
struct Order {
  const engine::Action* actions;
  std::size_t count;
  std::size_t segments;
};

// The exchange to replay: the ranks' orders and links, and the costs of codecs, hosts, and frames.
struct Setting {
  std::vector<Order> orders;  // of all ranks
  std::vector<Line> lines;    // of all ranks
  std::vector<Point> points;  // the costs of sums of 1, 2, ... gradients
  double call_s;              // the seconds of a codec's call
  bool exact;                 // whether a rank that publishes a segment need not decode the segment
  Host host;
  double header_nbytes;
  std::vector<std::size_t> group_sizes;  // of consecutive ranks; one group without core links
  double core_nbytes_per_s;              // the rate of a group's core link, in each direction
  std::size_t first_terms;               // the number of gradients in a rank's values before the exchange
  std::size_t lanes;
  std::size_t ahead;              // the number of frames sent early, and of receives posted early
  std::size_t cores;              // of one machine
  std::size_t ranks_per_machine;
};

// One rank's seconds and bytes in one lane.
struct Cost {
  double encode_s = 0.0;
  double decode_s = 0.0;
  double handling_s = 0.0;
  double wait_s = 0.0;
  double raw_nbytes = 0.0;
  double wire_nbytes = 0.0;
  std::size_t frames = 0;
};

// The result of a replay.
struct Replay {
  std::vector<Cost> ranks;   // of all ranks in the first lane, then in the next lane
  double line_busy_s = 0.0;  // the seconds that the busiest link needs for its bytes
};

// Replays an exchange. Throws `std::invalid_argument` if the ranks' orders don't match.
Replay replay(const Setting& setting);

}  // namespace gradwire::replay
