#include "check_engine.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/run.h"
#include "gradwire/losses.h"
#include "inputs.h"
#include "kernels/bits.h"

namespace gradwire::fuzz {

namespace {

using engine::Action;
using engine::Do;
using engine::Outcome;
using engine::Status;

constexpr double kPatience = 20.0;
constexpr std::uint8_t kCodecId = 3;
constexpr std::uint32_t kFingerprint = 0xABCD1234U;

class Sockets {
 public:
  Sockets() {
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) != 0) throw Failure("no socket pair");
    for (const int end : ends_) ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
  ~Sockets() {
    for (const int end : ends_) ::close(end);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  int operator[](std::size_t i) const { return ends_[i]; }

 private:
  std::array<int, 2> ends_{};
};

std::array<std::int64_t, 5> borders_of(std::int64_t n) { return {0, n / 4, n / 2, n / 2 + n / 8, n}; }

// A ring of two ranks, with two segments per chunk, one of each part.
std::vector<Action> schedule(std::int64_t rank, std::int64_t n) {
  const std::array<std::int64_t, 5> borders = borders_of(n);
  std::vector<Action> actions;
  const auto add = [&](Do what, std::int64_t chunk, std::int64_t step) {
    for (std::int64_t i = 0; i < 2; ++i) {
      const std::int64_t segment = 2 * chunk + i;
      const auto at = static_cast<std::size_t>(segment);
      actions.push_back({what, 1 - rank, borders[at], borders[at + 1], 0, step, i, segment, i});
    }
  };
  add(Do::send_partial, rank, 0);
  add(Do::add, 1 - rank, 0);
  add(Do::publish, 1 - rank, 1);
  add(Do::store, rank, 1);
  return actions;
}

// The kernels of parts that the engine doesn't encode, like those of a device.
class Kernels : public engine::Coder {
 public:
  Kernels(const Case& chosen, const std::vector<Action>& actions, float* values)
      : chosen_(chosen), actions_(actions), values_(values) {}

  bool encode(std::size_t action, engine::Byte* payload, std::size_t most_nbytes, std::size_t& nbytes) override {
    const Action& each = actions_[action];
    float* const values = values_ + each.start;
    Buffer<std::uint8_t> own(most_nbytes, 0);
    nbytes = chosen_.format->encode(target_, values, each.count(), own.data(), chosen_.params, 1);
    std::copy_n(own.data(), nbytes, payload);
    return true;
  }

  bool sent(std::size_t action, const engine::Byte* payload, std::size_t nbytes) override {
    const Action& each = actions_[action];
    return each.what != Do::publish || adopt(payload, nbytes, each);
  }

  bool take(std::size_t action, const engine::Byte* payload, std::size_t nbytes) override {
    const Action& each = actions_[action];
    if (each.what == Do::store) return adopt(payload, nbytes, each);
    return chosen_.format->decode(target_, payload, nbytes, values_ + each.start, each.count(), chosen_.params, true, 1) ==
           nullptr;
  }

 private:
  bool adopt(const engine::Byte* payload, std::size_t nbytes, const Action& each) {
    float* const values = values_ + each.start;
    const bool exact = chosen_.format->decode(target_, payload, nbytes, values, each.count(), chosen_.params, false, 1) == nullptr;
    finish(target_, values, each.count(), 2.0F, 1);
    return exact;
  }

  const Target& target_ = *available_targets()[0];
  const Case& chosen_;
  const std::vector<Action>& actions_;
  float* values_;
};

struct Rank {
  Rank(const Case& chosen, std::int64_t number, const Buffer<float>& chunk, bool measures, bool keeps)
      : actions(schedule(number, static_cast<std::int64_t>(chunk.size()))),
        values(chunk),
        lost(chunk.size(), 0),
        kernels(chosen, actions, values.data()),
        borders{0, static_cast<std::int64_t>(chunk.size() / 3), static_cast<std::int64_t>(chunk.size())} {
    request.actions = actions.data();
    request.count = actions.size();
    request.segment_count = chunk.size();
    request.segments = 4;
    const bool is_exact = chosen.format == find_format("pack") && chosen.params.a == 32;
    engine::Part part{values.data(), {chosen.format, chosen.params, chosen.params, kCodecId, kFingerprint, is_exact}, {}, {}};
    if (measures) part.errors = {keeps ? lost.data() : nullptr, borders.data(), 2, sums.data()};
    request.parts = {part, part};
    request.flags = 1;
    request.ranks = 2.0F;
    request.timeout_s = kPatience;
    request.threads = 1;
  }

  Outcome run(std::int64_t number, int descriptor) {
    engine::Engine engine;
    engine::Activity activity{0.0, 0.0, engine::now_s()};
    std::vector<engine::Peer> peers;
    peers.push_back({1 - number, engine::Connection(descriptor, nullptr, 0, 1), 0, 0});
    for (std::size_t i = 0; i < request.parts.size(); ++i) {
      if (is_coded[i]) give_coder(request.parts[i]);
    }
    const Outcome outcome = engine.run(request, peers, activity, {});
    for (const engine::Peer& peer : peers) peer.connection.unsent();
    return outcome;
  }

  void give_coder(engine::Part& part) {
    for (const Action& each : actions) part.most[each.count()] = part.most_nbytes(each.count());
    part.most[request.segment_count] = part.most_nbytes(request.segment_count);
    part.codec.format = nullptr;
    part.coder = &kernels;
  }

  std::vector<Action> actions;
  Buffer<float> values;
  Buffer<float> lost;
  Kernels kernels;
  std::array<bool, 2> is_coded{};  // by part, whether the engine calls the kernels
  std::array<std::int64_t, 3> borders;
  std::array<double, 6> sums{};
  engine::Request request{};
};

// Returns the averages of two ranks, computed segment by segment with the scalar kernels.
Buffer<float> averages(const Case& chosen, const Buffer<float>& one, const Buffer<float>& other) {
  const Target& target = *available_targets()[0];
  const Format& format = *chosen.format;
  const std::array<std::int64_t, 5> borders = borders_of(static_cast<std::int64_t>(one.size()));
  Buffer<float> all(one);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::int64_t start = borders[i];
    const auto count = static_cast<std::size_t>(borders[i + 1] - start);
    float* const sums = all.data() + start;
    const float* const partial = (i < 2 ? one : other).data() + start;
    const float* const own = (i < 2 ? other : one).data() + start;
    Buffer<std::uint8_t> payload(format.max_nbytes(count, chosen.params), 0);
    std::copy_n(own, count, sums);
    std::size_t nbytes = format.encode(target, partial, count, payload.data(), chosen.params, 1);
    format.decode(target, payload.data(), nbytes, sums, count, chosen.params, true, 1);
    nbytes = format.encode(target, sums, count, payload.data(), chosen.params, 1);
    format.decode(target, payload.data(), nbytes, sums, count, chosen.params, false, 1);
    finish(target, sums, count, 2.0F, 1);
  }
  return all;
}

void exchange(const Case& chosen, Random& random, std::size_t n) {
  const bool measures = random.one_in(2);
  const bool keeps = random.one_in(2);
  Rank one(chosen, 0, random_chunk(random, n), measures, keeps);
  Rank other(chosen, 1, random_chunk(random, n), measures, keeps);
  const Buffer<float> expected = averages(chosen, one.values, other.values);
  for (bool& each : one.is_coded) each = random.one_in(2);
  const Sockets sockets;
  Outcome outcomes[2];
  std::thread beside([&] { outcomes[1] = other.run(1, sockets[1]); });
  outcomes[0] = one.run(0, sockets[0]);
  beside.join();
  for (const Outcome& outcome : outcomes) {
    if (outcome.status != Status::done) throw Failure("an exchange of two ranks has failed");
  }
  if (!one.values.same_bits(other.values)) {
    throw Failure(std::string("ranks differ after an exchange with ") + chosen.format->name);
  }
  if (!one.values.same_bits(expected)) {
    throw Failure(std::string("the averages differ from the scalar ones with ") + chosen.format->name);
  }
}

// Returns the first frame that a correct peer of rank 0 sends, preceded by its length.
Buffer<std::uint8_t> first_frame(const Case& chosen, const Buffer<float>& chunk, std::size_t count) {
  Buffer<std::uint8_t> frame(8 + engine::kHeaderNbytes + chosen.format->max_nbytes(count, chosen.params), 0);
  std::uint8_t* const at = frame.data() + 8;
  const Target& target = current_target();
  const std::size_t nbytes = chosen.format->encode(target, chunk.data(), count, at + engine::kHeaderNbytes, chosen.params, 1);
  const auto whole = engine::seal(target, at, nbytes, {kCodecId, 1, static_cast<std::uint32_t>(count), kFingerprint, 0});
  store_word(frame.data(), static_cast<std::uint64_t>(whole));
  Buffer<std::uint8_t> cut(8 + whole, 0);
  cut.copy_from(frame.data(), 8 + whole);
  return cut;
}

// Runs a rank whose peer sends these bytes and disconnects. Returns whether the rank accepted the first frame.
bool is_taken(const Case& chosen, const Buffer<float>& chunk, const Buffer<std::uint8_t>& bytes) {
  Rank rank(chosen, 0, chunk, false, false);
  Sockets sockets;
  const std::size_t some = std::min<std::size_t>(bytes.size(), 1 << 16);  // fits into the kernel's buffer
  if (::send(sockets[1], bytes.data(), some, MSG_NOSIGNAL) < 0) throw Failure("a peer could not send");
  ::shutdown(sockets[1], SHUT_WR);
  const Outcome outcome = rank.run(0, sockets[0]);
  if (outcome.status == Status::done) throw Failure("an exchange ended without its peer");
  if (outcome.status == Status::timed_out) throw Failure("a rank did not detect that its peer had disconnected");
  const Action& failed = rank.actions[outcome.action];
  return !failed.receives() || failed.place > 0 || failed.step > 0;
}

}  // namespace

Verdicts check_engine(const std::vector<std::vector<Case>>& cases, Random& random) {
  constexpr int kMutations = 4;
  const std::uint64_t format = random.below(1 << 16);
  const Case& chosen = pick(cases, format, random.below(1 << 16));
  const std::size_t n = random.below(2000);
  exchange(chosen, random, n);
  Verdicts verdicts;
  const Buffer<float> chunk = random_chunk(random, n);
  const auto count = static_cast<std::size_t>(n / 2 + n / 8 - n / 2);
  const Buffer<std::uint8_t> frame = first_frame(chosen, chunk, count);
  if (!is_taken(chosen, chunk, frame)) throw Failure("an intact frame was rejected");
  for (int i = 0; i < kMutations; ++i) {
    (is_taken(chosen, chunk, mutated(random, frame)) ? verdicts.accepted : verdicts.refused) += 1;
  }
  return verdicts;
}

}  // namespace gradwire::fuzz
