#include "run.h"

#include <algorithm>
#include <cmath>

#include "gradwire/float_environment.h"
#include "gradwire/losses.h"
#include "gradwire/target.h"
#include "outgoing.h"
#include "stopwatch.h"

namespace gradwire::engine {

namespace {

// The limit on receives posted early, and on frames in flight; equal to frame_order.AHEAD.
constexpr std::size_t kAhead = 4;
// The limit on frames encoded early. A ring needs one more than the number of frames in flight.
constexpr std::size_t kMostReady = 2 * kAhead;

struct Failed {};  // thrown after the reason is stored in the outcome

}  // namespace

// The state of one run.
class Run {
 public:
  Run(Engine& engine, const Request& request, std::vector<Peer>& peers, Activity& activity,
      const std::function<bool()>& is_interrupted, Outcome& outcome)
      : request_(request),
        peers_(peers),
        activity_(activity),
        waiter_(peers, activity, request.timeout_s, is_interrupted),
        outcome_(outcome),
        target_(current_target()),
        incoming_(engine.incoming_),
        encoding_after_(next_encodings(request.actions, request.count, request.segments)),
        kept_(request.segments),
        brought_(request.segments) {
    std::int64_t largest = -1;
    for (const Peer& peer : peers_) largest = std::max(largest, peer.rank);
    peer_of_rank_.resize(static_cast<std::size_t>(largest + 1));
    for (Peer& peer : peers_) peer_of_rank_[static_cast<std::size_t>(peer.rank)] = &peer;
    outcome_.parts.resize(request.parts.size());
    for (const Part& part : request.parts) {
      Pool& outgoing = engine.outgoing_of(kHeaderNbytes + part.most_nbytes_up_to(request.segment_count));
      sending_.push_back({&outgoing, part.codec.is_plain()});
    }
  }

  void run() {
    for (std::size_t i = 0; i < kAhead; ++i) post();
    for (std::size_t i = 0; i < request_.count; ++i) {
      const Action& action = request_.actions[i];
      if (action.what != Do::store) bring(action);
      if (action.receives()) {
        take_in(action, i);
      } else {
        const Frame frame = action.what == Do::forward ? forwarded(action) : encoded(action, i);
        send(i, frame);
        if (frame.is_finished) continue;
        const Stopwatch watch(outcome_.decode_s);
        finish_sent(action, i, frame);
      }
    }
    while (!in_flight_.empty()) retire();
  }

  // Returns the actions whose receives were posted, but whose frames were not used.
  std::vector<std::size_t> posted() const { return {posted_.begin(), posted_.end()}; }

 private:
  // The memory for a part's frames, and whether the frames send values directly from the bucket.
  struct Sending {
    Pool* outgoing;
    bool is_plain;
  };

  Peer& peer_of(const Action& action) { return *peer_of_rank_[static_cast<std::size_t>(action.peer)]; }
  const Part& part_of(const Action& action) const { return request_.parts[static_cast<std::size_t>(action.part)]; }
  const Sending& sending_of(const Action& action) const { return sending_[static_cast<std::size_t>(action.part)]; }
  PartOutcome& outcome_of(const Action& action) { return outcome_.parts[static_cast<std::size_t>(action.part)]; }
  float* values_of(const Action& action) const { return part_of(action).values_of(action); }

  Header header_of(const Action& action, std::uint32_t sequence) const {
    return part_of(action).header_of(action, request_.flags, sequence);
  }

  [[noreturn]] void fail(Status status, std::size_t action) {
    outcome_.status = status;
    outcome_.action = action;
    throw Failed{};
  }

  // Posts the receive of the next action that receives.
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

  Frame encoded(const Action& action, std::size_t index) {
    const Stopwatch watch(outcome_.encode_s);
    const std::uint32_t sequence = peer_of(action).next_sent++;
    Frame frame = take_ready(ready_, index);
    if (frame.memory == nullptr) {
      Pool& outgoing = *sending_of(action).outgoing;
      frame = {outgoing.take(), 0, &outgoing, sequence};
      if (sending_of(action).is_plain && action.keep == 0) return with_values(action, frame);
      const bool is_own = part_of(action).coder == nullptr;
      const std::size_t nbytes = is_own ? encode_payload(action, frame) : encode_there(action, index, frame);
      frame.nbytes = seal(target_, frame.memory, nbytes, header_of(action, sequence));
    } else if (sequence != frame.sequence) {
      renumber(target_, frame.memory, sequence);
      frame.sequence = sequence;
    }
    if (action.what == Do::publish && action.keep != 0) kept_of(action) = frame;
    return frame;
  }

  Frame with_values(const Action& action, Frame frame) {
    frame.nbytes = kHeaderNbytes;
    frame.values = values_of(action);
    frame.count = action.count();
    frame.is_finished = true;
    const FrameParts parts = frame.parts();
    write_header(target_, frame.memory, parts.body, parts.body_nbytes, header_of(action, frame.sequence));
    return frame;
  }

  // Encodes a segment by the part's coder.
  std::size_t encode_there(const Action& action, std::size_t index, const Frame& frame) {
    std::size_t nbytes = 0;
    const Part& part = part_of(action);
    if (!part.coder->encode(index, frame.memory + kHeaderNbytes, part.most_nbytes(action.count()), nbytes)) {
      fail(Status::interrupted, index);
    }
    return nbytes;
  }

  // Encodes a segment, and immediately adopts finished sums if that is faster in this format. Returns the payload's
  // size.
  std::size_t encode_payload(const Action& action, Frame& frame) {
    const Format& format = *part_of(action).codec.format;
    Byte* const out = frame.memory + kHeaderNbytes;
    const Params& params = part_of(action).params_of(action);
    if (!part_of(action).is_adopted(action) || format.finishing == nullptr) {
      return format.encode(target_, values_of(action), action.count(), out, params, request_.threads);
    }
    bool finite = true;
    const std::size_t nbytes = format.finishing->encode(target_, values_of(action), action.count(), out, params,
                                                        request_.ranks, finite, request_.threads);
    frame.is_finished = true;
    finished(action, finite);
    return nbytes;
  }

  // Returns whether to encode a segment's sum at once after adding a frame to it, while the sum is in the cache.
  bool is_relayed(std::size_t index) const {
    const Format& format = *part_of(request_.actions[index]).codec.format;
    return encoding_after_[index] != kNone && ready_.size() < kMostReady && relays(format);
  }

  // Adds a payload to a segment, and encodes the sum for a later action; returns false for an invalid payload.
  bool relay_payload(const Action& action, std::size_t index, const Payload& payload) {
    const std::size_t later = encoding_after_[index];
    const Action& sending = request_.actions[later];
    const bool adopts = part_of(sending).is_adopted(sending);
    const Params& params = part_of(sending).params_of(sending);
    Pool& outgoing = *sending_of(sending).outgoing;
    Frame frame{outgoing.take(), 0, &outgoing, peer_of(sending).next_sent};
    const Relay chosen{payload, params, frame.memory + kHeaderNbytes, adopts, request_.ranks};
    bool finite = true;
    if (relay(target_, chosen, values_of(action), action.count(), finite, request_.threads) != nullptr) return false;
    const std::size_t nbytes = payload.format.max_nbytes(action.count(), params);
    frame.nbytes = seal(target_, frame.memory, nbytes, header_of(sending, frame.sequence));
    frame.is_finished = adopts;
    ready_.emplace(later, frame);
    if (adopts) finished(action, finite);
    return true;
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
    outcome_of(action).raw_nbytes += 4 * action.count();
    const FrameParts parts = frame.parts();
    outcome_.wire_nbytes += parts.nbytes();
    in_flight_.push_back({index, frame, peer_of(action).connection.send(parts, activity_)});
  }

  // Waits until no send uses the values of a segment, which are about to change.
  void await_values(const Action& action) {
    await_leaving([&](const InFlight& each) { return each.frame.values == values_of(action) && each.frame.count > 0; });
  }

  // Waits until no send uses the frame's memory. First posts the receives without which those sends can't complete.
  void await_leaving(const Frame& frame) {
    await_leaving([&](const InFlight& each) { return each.frame.memory == frame.memory; });
  }

  template <typename Uses>
  void await_leaving(const Uses& uses) {
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
    if (oldest.frame.values != nullptr && action.what == Do::publish) {
      const Stopwatch watch(outcome_.decode_s);
      finish_exact(action);
    }
    if (action.keep == 0) oldest.frame.home->give(oldest.frame.memory);
  }

  void take_in(const Action& action, std::size_t index) {
    Peer& peer = peer_of(action);
    Connection& own = peer.connection;
    wait(own, index, [&] { return own.has_frame(); }, [&]() -> const Fault& { return own.receive_fault(); });
    const Incoming came = own.take_frame();
    posted_.pop_front();
    post();
    await_values(action);
    const std::uint32_t sequence = peer.next_received++;
    const Stopwatch watch(outcome_.decode_s);
    const Part& part = part_of(action);
    std::size_t nbytes = 0;
    const std::size_t most_nbytes = part.most_nbytes(action.count());
    if (!open(target_, came.buffer, came.nbytes, header_of(action, sequence), most_nbytes, nbytes)) {
      refuse(Status::frame_refused, index, came);
    }
    if (part.coder != nullptr) {
      if (!part.coder->take(index, came.buffer + kHeaderNbytes, nbytes)) fail(Status::interrupted, index);
    } else if (!take_payload(action, index, part.payload_of(came.buffer, nbytes))) {
      refuse(Status::payload_refused, index, came);
    }
    if (action.keep != 0) {
      kept_of(action) = {came.buffer, kHeaderNbytes + nbytes, &incoming_, sequence};
    } else {
      incoming_.give(came.buffer);
    }
  }

  // Adds or stores a received payload; returns false for an invalid payload.
  bool take_payload(const Action& action, std::size_t index, const Payload& payload) {
    if (action.what == Do::store) return adopt_received(action, payload);
    if (is_relayed(index)) return relay_payload(action, index, payload);
    return payload.format.decode(target_, payload.data, payload.nbytes, values_of(action), action.count(), payload.params,
                                 true, request_.threads) == nullptr;
  }

  [[noreturn]] void refuse(Status status, std::size_t index, const Incoming& came) {
    outcome_.refused.assign(came.buffer, came.buffer + came.nbytes);
    fail(status, index);
  }

  // Measures the encoding error, and adopts decoded values, while the frame is in flight.
  void finish_sent(const Action& action, std::size_t index, const Frame& frame) {
    if (!action.encodes()) return;
    const Part& part = part_of(action);
    const std::size_t nbytes = frame.nbytes - kHeaderNbytes;
    if (part.coder != nullptr) {
      if (!part.coder->sent(index, frame.memory + kHeaderNbytes, nbytes)) fail(Status::interrupted, index);
      return;
    }
    const bool exact = part.codec.exact;
    const Payload payload = part.payload_of(frame.memory, nbytes);
    if (action.what == Do::send_partial) {
      if (!exact && part.errors.are_measured() && !measure(action, payload, false)) fail(Status::payload_refused, index);
    } else if (action.what == Do::publish) {
      if (exact) {
        finish_exact(action);
      } else if (!part.errors.are_measured()) {
        if (!adopt_received(action, payload)) fail(Status::payload_refused, index);
      } else {
        if (!measure(action, payload, true)) fail(Status::payload_refused, index);
        part_of(action).take_back(action);
      }
    }
  }

  // Decodes finished sums; returns false for an invalid payload.
  bool adopt_received(const Action& action, const Payload& payload) {
    bool finite = false;
    const char* const fault =
        decode_finished(target_, payload, values_of(action), action.count(), request_.ranks, finite, request_.threads);
    if (fault != nullptr) return false;
    finished(action, finite);
    return true;
  }

  void finish_exact(const Action& action) {
    finished(action, finish(target_, values_of(action), action.count(), request_.ranks, request_.threads));
  }

  // Records that a segment has its final values.
  void finished(const Action& action, bool finite) {
    outcome_of(action).finite &= finite;
    part_of(action).take_back(action);
  }

  bool measure(const Action& action, const Payload& payload, bool adopts) {
    const Segment segment{values_of(action), static_cast<std::size_t>(action.start), action.count()};
    const float divisor = adopts ? request_.ranks : 1.0F;
    const Loss loss = part_of(action).errors.measure(target_, payload, segment, adopts, divisor, decoded_, request_.threads);
    if (loss.fault != nullptr) return false;
    if (adopts) outcome_of(action).finite &= loss.finite;
    outcome_of(action).lost_finite &= std::isfinite(loss.lost);
    return true;
  }

  // Copies a segment from the bucket, unless it was copied before.
  void bring(const Action& action) {
    if (brought_[static_cast<std::size_t>(action.segment)]) return;
    brought_[static_cast<std::size_t>(action.segment)] = true;
    part_of(action).bring(action);
  }

  // Moves all frames that can move until is_done() is true; fails if the link fails, or on a timeout or an interrupt.
  template <typename IsDone, typename FaultOf>
  void wait(Connection& own, std::size_t action, const IsDone& is_done, const FaultOf& fault_of) {
    if (is_done()) return;
    const Stopwatch watch(outcome_.wait_s);
    const Status status = waiter_.wait(own, is_done, fault_of);
    if (status == Status::link_failed) outcome_.fault = fault_of();
    if (status != Status::done) fail(status, action);
  }

  const Request& request_;
  std::vector<Peer>& peers_;
  std::vector<Peer*> peer_of_rank_;
  Activity& activity_;
  Waiter waiter_;
  Outcome& outcome_;
  const Target& target_;
  Pool& incoming_;
  std::vector<Sending> sending_;  // by part
  std::vector<std::size_t> encoding_after_;  // by action
  std::map<std::size_t, Frame> ready_;       // by action
  std::vector<Frame> kept_;    // by segment
  std::vector<bool> brought_;  // by segment
  std::deque<std::size_t> posted_;
  std::size_t next_ = 0;  // the action whose receive is posted next
  Order posted_up_to_{std::numeric_limits<std::int64_t>::max(), 0};
  std::deque<InFlight> in_flight_;
  std::vector<float> decoded_;
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
