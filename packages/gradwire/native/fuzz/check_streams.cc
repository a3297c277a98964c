#include "check_streams.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <vector>

#include "check.h"
#include "replay/streams.h"

namespace gradwire::fuzz {

namespace {

using replay::kNewcomer;
using replay::kQueuedNbytes;
using replay::Port;
using replay::Stream;
using replay::Streams;

constexpr double kEndless = std::numeric_limits<double>::infinity();

// A frame that is added to a stream.
struct Push {
  double when_s;
  Stream* stream;
  double nbytes;
};

// Returns the time at which each frame has passed.
std::vector<double> play(const std::vector<Push>& pushes) {
  using Event = std::tuple<double, std::size_t, Stream*, std::size_t>;  // time, number, stream, and version
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::size_t number = 0;
  Streams streams([&](double when, Stream& stream, std::size_t version) {
    events.push({when, ++number, &stream, version});
  });
  for (const Push& push : pushes) events.push({push.when_s, number++, nullptr, 0});
  std::vector<double> passed(pushes.size(), -1.0);
  while (!events.empty()) {
    const auto [now, index, stream, version] = events.top();
    events.pop();
    if (stream == nullptr) {
      streams.push(*pushes[index].stream, index, pushes[index].nbytes, now);
    } else if (const auto frame = streams.pass_first(*stream, version, now)) {
      passed[*frame] = now;
    }
  }
  return passed;
}

bool are_close(double one, double other) { return std::fabs(one - other) <= 1e-9 * std::max(1.0, std::fabs(other)); }

void expect(const std::string& what, const std::vector<double>& got, const std::vector<double>& wanted) {
  if (std::equal(got.begin(), got.end(), wanted.begin(), wanted.end(), are_close)) return;
  std::string numbers;
  for (const double each : got) numbers.append(1, ' ').append(std::to_string(each));
  throw Failure("streams of a replay: " + what + ": got" + numbers);
}

void check_shares() {
  {
    Port fast(100.0), slow(50.0);
    Stream stream({&fast, &slow});
    expect("frames of one stream pass one after the other",
           play({{0.0, &stream, 100.0}, {0.0, &stream, 50.0}, {9.0, &stream, 50.0}}), {2.0, 3.0, 10.0});
  }
  {
    Port homes[] = {Port(100.0), Port(100.0)};
    Port door(100.0);
    Stream one({&homes[0], &door}), other({&homes[1], &door});
    expect("two streams share a port until one has passed", play({{0.0, &one, 150.0}, {0.0, &other, 50.0}}), {2.0, 1.0});
  }
  {
    // Three streams leave a port of 90; another port limits one of them to 10: max-min gives 10, 40, 40.
    Port source(90.0), narrow(10.0), wide[] = {Port(1000.0), Port(1000.0)};
    Stream slow({&source, &narrow}), fast[] = {Stream({&source, &wide[0]}), Stream({&source, &wide[1]})};
    expect("the rest of a slow stream's share goes to the others",
           play({{0.0, &slow, 10.0}, {0.0, &fast[0], 40.0}, {0.0, &fast[1], 40.0}}), {1.0, 1.0, 1.0});
  }
  {
    Port door(100.0);
    Stream one({&door}), other({&door});
    expect("a later stream of the same host has a smaller weight", play({{0.0, &one, 200.0}, {1.0, &other, 100.0}}),
           {2.0 + kNewcomer, 3.0});
  }
  {
    Port homes[] = {Port(1000.0), Port(1000.0)};
    Port door(100.0);
    Stream one({&homes[0], &door}), other({&homes[1], &door});
    expect("a later stream of another host has an equal share", play({{0.0, &one, 200.0}, {1.0, &other, 100.0}}),
           {3.0, 3.0});
  }
}

void check_bursts() {
  Port port(100.0, 50.0);
  Stream stream({&port});
  // The last frame has a credit of 25, for a quarter of a second.
  expect("a burst passes without delay, and its credit returns while the port is idle",
         play({{0.0, &stream, 50.0}, {1.0, &stream, 150.0}, {2.25, &stream, 125.0}}), {0.0, 2.0, 3.25});
  expect("a port's time for its bytes ignores bursts", {port.busy_s()}, {3.25});
  Port endless(kEndless);
  Stream free({&endless});
  expect("an infinitely fast port takes no time", play({{1.0, &free, 1e12}}), {1.0});
}

void check_holds() {
  const auto ignore = [](double, Stream&, std::size_t) {};
  {
    Port home(1e6), far(1e9);
    Streams streams(ignore);
    Stream alone({&home, &far}), small({&home}), large({&home}), newcomer({&home, &far});
    expect("a stream of an idle host enters at once", {alone.hold(1.0, 10.0)}, {1.0});
    streams.push(small, 0, 1000.0, 0.0);
    expect("a new stream waits for a small frame of its host", {newcomer.hold(0.0, 10.0)}, {1e-3});
    expect("it waits for the rest of that frame", {newcomer.hold(0.9e-3, 10.0)}, {1e-3});
    streams.push(large, 1, 1e9, 0.0);
    const double enters_s = newcomer.hold(0.0, 10.0);
    expect("it waits for the queued bytes of a large frame", {enters_s}, {(1000.0 + kQueuedNbytes) / 1e6});
    if (newcomer.hold(enters_s / 2, 10.0) < enters_s) throw Failure("streams of a replay: a frame overtakes one on hold");
    streams.push(newcomer, 2, 10.0, enters_s);
    expect("frames after its own frames aren't held", {newcomer.hold(2.0, 10.0)}, {2.0});
    Port endless(kEndless);
    Stream free({&endless, &home});
    expect("a host with an infinitely fast link holds nothing", {free.hold(0.0, 10.0)}, {0.0});
  }
  {
    Port home(1e6);
    Streams streams(ignore);
    Stream first({&home}), second({&home}), third({&home}), fourth({&home}), last({&home});
    streams.push(first, 0, 1000.0, 0.0);
    expect("new streams of one host enter one after the other",
           {second.hold(0.0, 3000.0), third.hold(0.0, 1e9), fourth.hold(0.0, 10.0)},
           {1e-3, 4e-3, (4000.0 + kQueuedNbytes) / 1e6});
    streams.push(second, 1, 3000.0, 1e-3);
    expect("a held stream that has entered counts once", {last.hold(1e-3, 10.0)}, {(4010.0 + kQueuedNbytes) / 1e6});
  }
}

}  // namespace

void check_timelines() {
  check_shares();
  check_bursts();
  check_holds();
}

void check_streams(Random& random) {
  constexpr std::size_t kHosts = 4;
  constexpr double kOut = 100.0;
  constexpr double kIn = 70.0;
  std::deque<Port> out(kHosts, Port(kOut)), in(kHosts, Port(kIn));
  std::map<std::pair<std::size_t, std::size_t>, Stream> streams;
  std::vector<Push> pushes;
  double first_s = kEndless, last_s = 0.0, total = 0.0;
  for (std::size_t count = 1 + random.below(20); count > 0; --count) {
    const std::size_t from = random.below(kHosts), to = random.below(kHosts);
    const auto nbytes = static_cast<double>(1 + random.below(1000));
    const double when = static_cast<double>(random.below(5000)) / 1000;
    Stream& stream = streams.try_emplace({from, to}, std::vector<Port*>{&out[from], &in[to]}).first->second;
    pushes.push_back({when, &stream, nbytes});
    first_s = std::min(first_s, when);
    last_s = std::max(last_s, when);
    total += nbytes;
  }
  const std::vector<double> passed = play(pushes);
  if (*std::min_element(passed.begin(), passed.end()) < 0) throw Failure("streams of a replay: a frame never passes");
  const double end_s = *std::max_element(passed.begin(), passed.end());
  for (const auto* ports : {&out, &in}) {
    for (const Port& port : *ports) {
      if (end_s < first_s + port.busy_s() - 1e-6 && port.carried_nbytes > 0) {
        throw Failure("streams of a replay: a port passes more than its rate");
      }
    }
  }
  if (end_s > last_s + total / kIn + 1e-6) throw Failure("streams of a replay: a port is idle with work to do");
}

}  // namespace gradwire::fuzz
