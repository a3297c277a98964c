#include "run.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "gradwire/float_environment.h"
#include "gradwire/losses.h"
#include "gradwire/target.h"

namespace gradwire::engine {

namespace {

// The largest number of receives posted early, and of frames in flight, as frame_order.AHEAD.
constexpr std::size_t kAhead = 4;
// The number of keepalives per timeout, as links/base.SIGNS.
constexpr double kSigns = 4.0;
constexpr double kMoment = 0.001;
constexpr double kLongestSleep = 3600.0;
// The longest time for which a thread that has to notice interrupts doesn't look for them.
constexpr double kInterruptible = 0.2;

struct Failed {};  // thrown once the outcome says why

using Order = std::pair<std::int64_t, std::int64_t>;
constexpr Order kLast{std::numeric_limits<std::int64_t>::max(), 0};

Order order_of(const Action& action) { return {action.step, action.place}; }

// Adds the seconds of its lifetime to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), began_(now_s()) {}
  ~Stopwatch() { total_ += now_s() - began_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  double began_;
};

// A sealed frame, and the pool of its memory.
struct Frame {
  Byte* memory = nullptr;
  std::size_t nbytes = 0;
  Pool* home = nullptr;
  std::uint32_t sequence = 0;
};

struct InFlight {
  std::size_t action;
  Frame frame;
  std::uint64_t ticket;
};

}  // namespace

// The state of one run.
class Run {
 public:
  Run(Engine& engine, const Request& request, std::vector<Peer>& peers, Activity& activity,
      const std::function<bool()>& is_interrupted, Outcome& outcome)
      : request_(request),
        peers_(peers),
        activity_(activity),
        is_interrupted_(is_interrupted),
        outcome_(outcome),
        target_(current_target()),
        incoming_(engine.incoming_),
        outgoing_(engine.outgoing_of(kHeaderNbytes + most_nbytes(request.segment_count))),
        kept_(request.segments),
        brought_(request.segments) {
    std::int64_t largest = -1;
    for (const Peer& peer : peers_) largest = std::max(largest, peer.rank);
    peer_of_rank_.resize(static_cast<std::size_t>(largest + 1));
    for (Peer& peer : peers_) peer_of_rank_[static_cast<std::size_t>(peer.rank)] = &peer;
  }

  void run() {
    for (std::size_t i = 0; i < kAhead; ++i) post();
    for (std::size_t i = 0; i < request_.count; ++i) {
      const Action& action = request_.actions[i];
      if (action.what != Do::store) bring(action);
      if (action.receives()) {
        take_in(action, i);
      } else {
        const Frame frame = action.what == Do::forward ? forwarded(action) : encoded(action);
        send(i, frame);
        const Stopwatch watch(outcome_.decode_s);
        finish_sent(action, i, frame);
      }
    }
    while (!in_flight_.empty()) retire();
  }

  // The receives that no action has taken.
  std::vector<std::size_t> posted() const { return {posted_.begin(), posted_.end()}; }

 private:
  std::size_t most_nbytes(std::size_t count) const {
    const Codec& codec = request_.codec;
    return codec.format->max_nbytes(count, codec.params);
  }

  Peer& peer_of(const Action& action) { return *peer_of_rank_[static_cast<std::size_t>(action.peer)]; }
  float* values_of(const Action& action) const { return request_.values + action.start; }

  Header header_of(const Action& action, std::uint32_t sequence) const {
    return {request_.codec.id, request_.flags, static_cast<std::uint32_t>(action.count()), request_.codec.fingerprint,
            sequence};
  }

  [[noreturn]] void fail(Status status, std::size_t action) {
    outcome_.status = status;
    outcome_.action = action;
    throw Failed{};
  }

  // Posts the next expected receive.
  void post() {
    while (next_ < request_.count && !request_.actions[next_].receives()) ++next_;
    if (next_ == request_.count) {
      posted_up_to_ = kLast;
      return;
    }
    const Action& action = request_.actions[next_];
    peer_of(action).connection.post(incoming_.take());
    posted_.push_back(next_++);
    posted_up_to_ = order_of(action);
  }

  Frame encoded(const Action& action) {
    const Stopwatch watch(outcome_.encode_s);
    const Codec& codec = request_.codec;
    const bool is_sum = action.what == Do::publish;
    Frame frame{outgoing_.take(), 0, &outgoing_, peer_of(action).next_sent++};
    const std::size_t nbytes =
        codec.format->encode(target_, values_of(action), action.count(), frame.memory + kHeaderNbytes,
                             is_sum ? codec.of_sums : codec.params, request_.threads);
    frame.nbytes = seal(target_, frame.memory, nbytes, header_of(action, frame.sequence));
    if (is_sum && action.keep != 0) kept_of(action) = frame;
    return frame;
  }

  Frame forwarded(const Action& action) {
    Frame frame = kept_of(action);
    const std::uint32_t sequence = peer_of(action).next_sent++;
    if (sequence != frame.sequence) {
      await_leaving(frame);
      renumber(target_, frame.memory, sequence);
      frame.sequence = sequence;
    }
    kept_of(action) = frame;
    return frame;
  }

  Frame& kept_of(const Action& action) { return kept_[static_cast<std::size_t>(action.segment)]; }

  void send(std::size_t index, const Frame& frame) {
    while (in_flight_.size() >= kAhead && order_of(request_.actions[in_flight_.front().action]) <= posted_up_to_) retire();
    const Action& action = request_.actions[index];
    outcome_.frames += 1;
    outcome_.raw_nbytes += 4 * action.count();
    outcome_.wire_nbytes += frame.nbytes;
    in_flight_.push_back({index, frame, peer_of(action).connection.send(frame.memory, frame.nbytes, activity_)});
  }

  // Waits until no send uses the frame; first posts the receives that such a wait requires.
  void await_leaving(const Frame& frame) {
    const auto uses = [&](const InFlight& each) { return each.frame.memory == frame.memory; };
    while (std::any_of(in_flight_.begin(), in_flight_.end(), uses)) {
      while (posted_up_to_ < order_of(request_.actions[in_flight_.front().action])) post();
      retire();
    }
  }

  // Waits until the oldest frame in flight has left.
  void retire() {
    const InFlight oldest = in_flight_.front();
    in_flight_.pop_front();
    const Action& action = request_.actions[oldest.action];
    Connection& own = peer_of(action).connection;
    wait(own, oldest.action, [&] { return own.has_sent(oldest.ticket); }, [&]() -> const Fault& { return own.send_fault(); });
    if (action.keep == 0) oldest.frame.home->give(oldest.frame.memory);
  }

  void take_in(const Action& action, std::size_t index) {
    Peer& peer = peer_of(action);
    Connection& own = peer.connection;
    wait(own, index, [&] { return own.has_frame(); }, [&]() -> const Fault& { return own.receive_fault(); });
    const Incoming came = own.take_frame();
    posted_.pop_front();
    post();
    const std::uint32_t sequence = peer.next_received++;
    const Stopwatch watch(outcome_.decode_s);
    std::size_t nbytes = 0;
    if (!open(target_, came.buffer, came.nbytes, header_of(action, sequence), most_nbytes(action.count()), nbytes)) {
      refuse(Status::frame_refused, index, came);
    }
    const Payload payload = payload_of(came.buffer, nbytes);
    if (action.what == Do::add) {
      if (payload.format.decode(target_, payload.data, payload.nbytes, values_of(action), action.count(), payload.params,
                                true, request_.threads) != nullptr) {
        refuse(Status::payload_refused, index, came);
      }
    } else if (!adopt_received(action, payload)) {
      refuse(Status::payload_refused, index, came);
    }
    if (action.keep != 0) {
      kept_of(action) = {came.buffer, kHeaderNbytes + nbytes, &incoming_, sequence};
    } else {
      incoming_.give(came.buffer);
    }
  }

  [[noreturn]] void refuse(Status status, std::size_t index, const Incoming& came) {
    outcome_.refused.assign(came.buffer, came.buffer + came.nbytes);
    fail(status, index);
  }

  Payload payload_of(const Byte* frame, std::size_t nbytes) const {
    return {*request_.codec.format, request_.codec.params, frame + kHeaderNbytes, nbytes};
  }

  // Measures the encoding error, and adopts decoded values, while the frame is in flight.
  void finish_sent(const Action& action, std::size_t index, const Frame& frame) {
    const bool exact = request_.codec.exact;
    const Payload payload = payload_of(frame.memory, frame.nbytes - kHeaderNbytes);
    if (action.what == Do::send_partial) {
      if (!exact && request_.errors.are_measured() && !measure(action, payload, false)) fail(Status::payload_refused, index);
    } else if (action.what == Do::publish) {
      if (exact) {
        outcome_.finite &= finish(target_, values_of(action), action.count(), request_.ranks, request_.threads);
        take_back(action);
      } else if (!request_.errors.are_measured()) {
        if (!adopt_received(action, payload)) fail(Status::payload_refused, index);
      } else {
        if (!measure(action, payload, true)) fail(Status::payload_refused, index);
        take_back(action);
      }
    }
  }

  // Decodes finished sums; returns false for an invalid payload.
  bool adopt_received(const Action& action, const Payload& payload) {
    bool finite = false;
    const char* const fault =
        decode_finished(target_, payload, values_of(action), action.count(), request_.ranks, finite, request_.threads);
    if (fault != nullptr) return false;
    outcome_.finite &= finite;
    take_back(action);
    return true;
  }

  bool measure(const Action& action, const Payload& payload, bool adopts) {
    const Segment segment{values_of(action), static_cast<std::size_t>(action.start), action.count()};
    const float divisor = adopts ? request_.ranks : 1.0F;
    const Loss loss = request_.errors.measure(target_, payload, segment, adopts, divisor, decoded_, request_.threads);
    if (loss.fault != nullptr) return false;
    if (adopts) outcome_.finite &= loss.finite;
    outcome_.lost_finite &= std::isfinite(loss.lost);
    return true;
  }

  // Copies a segment from the bucket, once.
  void bring(const Action& action) {
    if (request_.copies.bucket == nullptr || brought_[static_cast<std::size_t>(action.segment)]) return;
    brought_[static_cast<std::size_t>(action.segment)] = true;
    request_.copies.bring(request_.values, action.start, action.stop);
  }

  // Copies the final values of a segment to the bucket.
  void take_back(const Action& action) {
    if (request_.copies.bucket != nullptr) request_.copies.take_back(request_.values, action.start, action.stop);
  }

  // Moves all frames that can move until is_done(), or fails.
  template <typename IsDone, typename FaultOf>
  void wait(Connection& own, std::size_t action, const IsDone& is_done, const FaultOf& fault_of) {
    if (is_done()) return;
    const Stopwatch watch(outcome_.wait_s);
    const double began = now_s();
    for (;;) {
      send_due_keepalives();
      own.push(activity_);
      own.pull(false, activity_);
      if (is_done()) return;
      if (fault_of()) {
        outcome_.fault = fault_of();
        fail(Status::link_failed, action);
      }
      if (!sleep(own, began, is_done)) fail(Status::timed_out, action);
      if (was_interrupted_) fail(Status::interrupted, action);
    }
  }

  void send_due_keepalives() {
    const double now = now_s();
    if (activity_.sent_s >= activity_.moved_s || now - activity_.sent_s <= request_.timeout_s / kSigns) return;
    activity_.sent_s = now;
    for (Peer& peer : peers_) {
      if (peer.connection.hears()) peer.connection.pull(true, activity_);  // so that keepalives don't accumulate
      peer.connection.send_keepalive(activity_);
    }
  }

  // Moves frames on the other connections, then sleeps until a frame can move; returns false after the timeout.
  template <typename IsDone>
  bool sleep(Connection& own, double began, const IsDone& is_done) {
    const double now = now_s();
    const double timeout_s = request_.timeout_s;
    const bool listening = now - began > timeout_s / kSigns;
    awaited_.clear();
    for (Peer& peer : peers_) {
      Connection& each = peer.connection;
      const bool is_own = &each == &own;
      if (!is_own) {
        if (!(each.is_receiving() || each.is_sending() || listening)) continue;
        each.push(activity_);
      }
      if (listening || !is_own) each.pull(listening, activity_);
      const bool reads = each.is_receiving() || (listening && each.hears());
      const int events = (reads ? POLLIN : 0) | (each.is_sending() ? POLLOUT : 0);
      if (events != 0 || is_own) awaited_.push_back({each.descriptor(), static_cast<short>(events), 0});
    }
    const double left_s = std::max({began, activity_.moved_s, activity_.heard_s}) + timeout_s - now;
    if (left_s <= 0) return false;
    if (is_done()) return true;
    double most_s = std::min({left_s, timeout_s / kSigns + kMoment, kLongestSleep});
    if (is_interrupted_) most_s = std::min(most_s, kInterruptible);
    const timespec limit{static_cast<time_t>(most_s), static_cast<long>(1e9 * (most_s - std::floor(most_s)))};
    ::ppoll(awaited_.data(), awaited_.size(), &limit, nullptr);
    look_for_interrupts();
    return true;
  }

  void look_for_interrupts() {
    const double now = now_s();
    if (!is_interrupted_ || now - looked_s_ < kInterruptible) return;
    looked_s_ = now;
    was_interrupted_ = is_interrupted_();
  }

  const Request& request_;
  std::vector<Peer>& peers_;
  std::vector<Peer*> peer_of_rank_;
  Activity& activity_;
  const std::function<bool()>& is_interrupted_;
  Outcome& outcome_;
  const Target& target_;
  Pool& incoming_;
  Pool& outgoing_;
  std::vector<Frame> kept_;    // by segment
  std::vector<bool> brought_;  // by segment
  std::deque<std::size_t> posted_;
  std::size_t next_ = 0;  // the action whose receive is posted next
  Order posted_up_to_{std::numeric_limits<std::int64_t>::max(), 0};
  std::deque<InFlight> in_flight_;
  std::vector<float> decoded_;
  std::vector<pollfd> awaited_;
  bool was_interrupted_ = false;
  double looked_s_ = now_s();
};

Pool& Engine::outgoing_of(std::size_t nbytes) { return outgoing_.try_emplace(nbytes, nbytes).first->second; }

Outcome Engine::run(const Request& request, std::vector<Peer>& peers, Activity& activity,
                    const std::function<bool()>& is_interrupted) {
  const FloatEnvironment environment;
  Outcome outcome;
  Run run(*this, request, peers, activity, is_interrupted, outcome);
  try {
    run.run();
  } catch (const Failed&) {
    outcome.posted = run.posted();
    incoming_.reset();
    for (auto& [nbytes, pool] : outgoing_) pool.reset();
  }
  return outcome;
}

}  // namespace gradwire::engine
