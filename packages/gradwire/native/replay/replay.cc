#include "replay.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "network.h"
#include "streams.h"

namespace gradwire::replay {

namespace {

using engine::Action;
using engine::Do;
using engine::kNone;

// The cores of one machine, assigned first come, first served.
class Cores {
 public:
  explicit Cores(std::size_t count) : free_s_(std::greater<>{}, std::vector<double>(count, 0.0)) {}

  // Returns the time at which work of `lasts_s` CPU seconds, queued at `now_s`, is done.
  double take(double now_s, double lasts_s) {
    if (lasts_s <= 0) return now_s;
    const double done = std::max(now_s, free_s_.top()) + lasts_s;
    free_s_.pop();
    free_s_.push(done);
    return done;
  }

 private:
  std::priority_queue<double, std::vector<double>, std::greater<>> free_s_;
};

// A frame. `sender` and `receiver` are indices among the ranks of all lanes.
struct Frame {
  Frame(std::size_t from, std::size_t to) : sender(from), receiver(to) {}

  std::size_t sender;
  std::size_t receiver;
  double nbytes = 0.0;
  double carried_nbytes = 0.0;  // the bytes on the link, fewer than `nbytes` if NICs compress the frame
  std::size_t terms = 1;
  bool queued = false;
  std::optional<double> left_s;
  std::optional<double> arrived_s;
};

// The state of the thread of one lane on one rank.
struct Rank {
  Rank(const Order& order, std::size_t rank, std::size_t own_lane, Cores& shared, std::size_t terms)
      : number(rank), lane(own_lane), cores(&shared), terms_of(order.segments, terms) {
    for (std::size_t i = 0; i < order.count; ++i) {
      actions.push_back(&order.actions[i]);
      if (actions.back()->receives()) to_post.push_back(engine::order_of(*actions.back()));
    }
    frames.resize(order.count);
  }

  std::size_t number;
  std::size_t lane;
  Cores* cores;
  std::vector<std::size_t> terms_of;  // by segment
  std::vector<const Action*> actions;
  std::vector<std::size_t> frames;  // by action
  std::size_t at = 0;
  bool encoded = false;
  std::size_t waits_for = kNone;  // the frame that must leave or arrive before the thread continues
  std::deque<std::pair<engine::Order, std::size_t>> in_flight;
  std::deque<engine::Order> to_post;
  engine::Order posted_up_to{-1, 0};
  Cost cost;
};

// The subject of an event: the rank that continues, the frame that departs or arrives, or the stream whose first frame
// has passed.
enum class Subject { rank, frame, stream };

struct Event {
  double when_s;
  std::size_t number;  // events of the same time happen in the order in which they were scheduled
  Subject subject;
  std::size_t index;
  Stream* stream;

  bool operator>(const Event& other) const { return std::tie(when_s, number) > std::tie(other.when_s, other.number); }
};

// The event loop, which runs the events of its ranks, cores, and streams in time order.
class EventLoop {
 public:
  explicit EventLoop(const Setting& setting)
      : setting_(setting), network_(setting), streams_([this](double when, Stream& stream, std::size_t version) {
          schedule(when, Subject::stream, version, &stream);
        }) {
    const std::size_t world = setting.orders.size();
    const std::size_t per_machine = setting.ranks_per_machine;
    for (std::size_t rank = 0; rank < world; rank += per_machine) machines_.emplace_back(setting.cores);
    for (std::size_t lane = 0; lane < setting.lanes; ++lane) {
      for (std::size_t rank = 0; rank < world; ++rank) {
        ranks_.emplace_back(setting.orders[rank], rank, lane, machines_[rank / per_machine], setting.first_terms);
      }
      join(lane * world, world);
    }
  }

  Replay run() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      for (std::size_t ahead = 0; ahead < setting_.ahead; ++ahead) post(ranks_[i]);
      schedule(0.0, Subject::rank, i);
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      happen(event);
    }
    Replay found{{}, network_.busiest_s()};
    for (const Rank& rank : ranks_) {
      if (rank.at < rank.actions.size() || !rank.in_flight.empty()) mismatch(rank.number);
      found.ranks.push_back(rank.cost);
    }
    return found;
  }

 private:
  [[noreturn]] static void mismatch(std::size_t rank) {
    throw std::invalid_argument("the frame order of rank " + std::to_string(rank) + " doesn't match its peers' orders");
  }

  // Creates a frame for every send and its matching receive: between two ranks, the n-th receive matches the n-th send.
  void join(std::size_t first, std::size_t world) {
    std::map<std::pair<std::size_t, std::size_t>, std::deque<std::size_t>> ways;
    for (std::size_t i = first; i < first + world; ++i) {
      for (std::size_t k = 0; k < ranks_[i].actions.size(); ++k) {
        const Action& action = *ranks_[i].actions[k];
        if (action.peer < 0 || static_cast<std::size_t>(action.peer) >= world) mismatch(ranks_[i].number);
        if (action.receives()) continue;
        const std::size_t receiver = first + static_cast<std::size_t>(action.peer);
        ranks_[i].frames[k] = frames_.size();
        ways[{i, receiver}].push_back(frames_.size());
        frames_.emplace_back(i, receiver);
      }
    }
    for (std::size_t i = first; i < first + world; ++i) {
      for (std::size_t k = 0; k < ranks_[i].actions.size(); ++k) {
        const Action& action = *ranks_[i].actions[k];
        if (!action.receives()) continue;
        auto& way = ways[{first + static_cast<std::size_t>(action.peer), i}];
        if (way.empty()) mismatch(ranks_[i].number);
        ranks_[i].frames[k] = way.front();
        way.pop_front();
      }
    }
  }

  void schedule(double when, Subject subject, std::size_t index, Stream* stream = nullptr) {
    events_.push({when, ++scheduled_, subject, index, stream});
  }

  void happen(const Event& event) {
    switch (event.subject) {
      case Subject::rank:
        proceed(event.index, event.when_s);
        break;
      case Subject::stream:
        if (const auto frame = streams_.pass_first(*event.stream, event.index, event.when_s)) {
          leave(*frame, event.when_s);
        }
        break;
      case Subject::frame:
        if (frames_[event.index].left_s) {
          arrive(event.index, event.when_s);
        } else {
          depart(event.index, event.when_s);
        }
        break;
    }
  }

  // Runs a rank's thread as far as possible at `now`, and schedules its continuation.
  void proceed(std::size_t index, double now) {
    Rank& rank = ranks_[index];
    if (rank.at == rank.actions.size()) {
      const Cost& cost = rank.cost;
      rank.cost.wait_s = std::max(0.0, now - (cost.encode_s + cost.decode_s + cost.handling_s));
      retire(index, now, 0);
      return;
    }
    const Action& action = *rank.actions[rank.at];
    const std::size_t frame = rank.frames[rank.at];
    if (action.receives()) {
      if (reached(index, frame, frames_[frame].arrived_s, now)) receive(index, action, frame, now);
    } else if (action.encodes() && !rank.encoded) {
      rank.encoded = true;
      schedule(encode(rank, action, now), Subject::rank, index);
    } else if (retire(index, now, setting_.ahead - 1)) {
      send(index, action, frame, now);
    }
  }

  // Returns whether `now` has reached `when`; if not, schedules the rank to continue at `when`. If `when` is unknown, the
  // rank waits for the frame.
  bool reached(std::size_t index, std::size_t frame, const std::optional<double>& when, double now) {
    if (!when) {
      ranks_[index].waits_for = frame;
      return false;
    }
    if (*when > now) {
      schedule(*when, Subject::rank, index);
      return false;
    }
    return true;
  }

  // Returns whether at most `down_to` frames of the rank are in flight; if not, the rank waits. Frames that have left the
  // host are no longer in flight. A send doesn't wait for frames whose order is beyond the posted receives.
  bool retire(std::size_t index, double now, std::size_t down_to) {
    Rank& rank = ranks_[index];
    while (rank.in_flight.size() > down_to) {
      const auto& [order, frame] = rank.in_flight.front();
      if (down_to > 0 && order > rank.posted_up_to) return true;
      if (!reached(index, frame, frames_[frame].left_s, now)) return false;
      rank.in_flight.pop_front();
    }
    return true;
  }

  double encode(Rank& rank, const Action& action, double now) {
    const auto count = static_cast<double>(action.count());
    const Point& point = point_of(terms(rank, action));
    const bool adopts = action.what == Do::publish && !setting_.exact;
    const double encode_s = setting_.call_s + count * point.encode_s;
    const double decode_s = adopts ? setting_.call_s + count * point.decode_s : 0.0;
    rank.cost.encode_s += encode_s;
    rank.cost.decode_s += decode_s;
    return rank.cores->take(now, encode_s + decode_s);
  }

  void send(std::size_t index, const Action& action, std::size_t number, double now) {
    Rank& rank = ranks_[index];
    Frame& frame = frames_[number];
    const Host& host = setting_.host;
    const auto count = static_cast<double>(action.count());
    frame.terms = terms(rank, action);
    const Point& point = point_of(frame.terms);
    frame.nbytes = setting_.header_nbytes + count * point.nbytes;
    frame.carried_nbytes = setting_.header_nbytes + count * point.carried_nbytes;
    rank.cost.frames += 1;
    rank.cost.raw_nbytes += 4 * count;
    rank.cost.wire_nbytes += frame.nbytes;
    const double handling_s = host.send_s + frame.nbytes * host.send_s_per_nbyte;
    rank.cost.handling_s += handling_s;
    const double handed_over_s = rank.cores->take(now, handling_s);
    rank.cores->take(now, frame.nbytes * host.beside_s_per_nbyte);
    rank.in_flight.emplace_back(engine::order_of(action), number);
    schedule(handed_over_s, Subject::frame, number);
    ++rank.at;
    rank.encoded = false;
    schedule(handed_over_s, Subject::rank, index);
  }

  void receive(std::size_t index, const Action& action, std::size_t number, double now) {
    Rank& rank = ranks_[index];
    const Frame& frame = frames_[number];
    const Host& host = setting_.host;
    post(rank);
    const bool adds = action.what == Do::add;
    const Point& point = point_of(frame.terms);
    std::size_t& own = rank.terms_of[static_cast<std::size_t>(action.segment)];
    own = frame.terms + (adds ? own : 0);
    const auto count = static_cast<double>(action.count());
    const double decode_s = setting_.call_s + count * (adds ? point.decode_add_s : point.decode_s);
    const double handling_s = host.receive_s + frame.nbytes * host.receive_s_per_nbyte;
    rank.cost.decode_s += decode_s;
    rank.cost.handling_s += handling_s;
    ++rank.at;
    schedule(rank.cores->take(now, handling_s + decode_s), Subject::rank, index);
  }

  // Posts one more receive of a rank. The rank's sends depend on its posted receives (`retire`).
  void post(Rank& rank) {
    if (rank.to_post.empty()) {
      rank.posted_up_to = engine::kLast;
      return;
    }
    rank.posted_up_to = rank.to_post.front();
    rank.to_post.pop_front();
  }

  // Adds a frame to its stream once the frames before it have left the host.
  void depart(std::size_t number, double now) {
    Frame& frame = frames_[number];
    const Rank& sender = ranks_[frame.sender];
    Stream& stream = network_.stream(sender.number, ranks_[frame.receiver].number, sender.lane);
    if (!frame.queued) {
      frame.queued = true;
      const double enters_s = stream.hold(now, frame.carried_nbytes);
      if (enters_s > now) {
        schedule(enters_s, Subject::frame, number);
        return;
      }
    }
    streams_.push(stream, number, frame.carried_nbytes, now);
  }

  // Records that a frame's last byte left the host, and schedules its arrival after the latency.
  void leave(std::size_t number, double now) {
    Frame& frame = frames_[number];
    frame.left_s = now;
    frame.arrived_s = now + network_.latency_s(ranks_[frame.sender].number, ranks_[frame.receiver].number);
    wake(frame.sender, number, now);
    schedule(*frame.arrived_s, Subject::frame, number);
  }

  // Records a frame's arrival; the kernel's copy of the frame occupies a core of the receiver.
  void arrive(std::size_t number, double now) {
    const Frame& frame = frames_[number];
    ranks_[frame.receiver].cores->take(now, frame.nbytes * setting_.host.beside_s_per_nbyte);
    wake(frame.receiver, number, now);
  }

  // Schedules a rank to continue now if the rank waits for the frame.
  void wake(std::size_t index, std::size_t frame, double now) {
    if (ranks_[index].waits_for != frame) return;
    ranks_[index].waits_for = kNone;
    schedule(now, Subject::rank, index);
  }

  static std::size_t terms(const Rank& rank, const Action& action) {
    return rank.terms_of[static_cast<std::size_t>(action.segment)];
  }

  const Point& point_of(std::size_t terms) const {
    if (terms == 0 || terms > setting_.points.size()) {
      throw std::invalid_argument("a frame has a sum of " + std::to_string(terms) + " gradients, of " +
                                  std::to_string(setting_.points.size()));
    }
    return setting_.points[terms - 1];
  }

  const Setting& setting_;
  Network network_;
  Streams streams_;
  std::deque<Cores> machines_;
  std::vector<Rank> ranks_;
  std::vector<Frame> frames_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::size_t scheduled_ = 0;
};

}  // namespace

Replay replay(const Setting& setting) { return EventLoop(setting).run(); }

}  // namespace gradwire::replay
