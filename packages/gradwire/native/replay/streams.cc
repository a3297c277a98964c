#include "streams.h"

#include <algorithm>
#include <limits>

namespace gradwire::replay {

namespace {

constexpr double kEndless = std::numeric_limits<double>::infinity();

template <typename T>
bool contains(const std::vector<T*>& all, const T* one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

void release(Port& home, const Stream* stream) {
  std::erase_if(home.held, [stream](const auto& each) { return each.first == stream; });
}

// Returns the streams in `found`, and all streams that share ports with these, directly or through other streams.
std::vector<Stream*> together(std::vector<Stream*> found) {
  std::vector<Stream*> todo = found;
  while (!todo.empty()) {
    const Stream& stream = *todo.back();
    todo.pop_back();
    for (const Port* port : stream.ports) {
      for (Stream* other : port->streams) {
        if (contains(found, other)) continue;
        found.push_back(other);
        todo.push_back(other);
      }
    }
  }
  return found;
}

using Rates = std::vector<std::pair<Stream*, double>>;

struct Waiting {
  Stream* stream;
  double weight;
  bool waits = true;
};

// The part of a port's rate that isn't assigned yet, and the streams through the port that still wait for a rate.
struct Shared {
  Port* port;
  double left;
  std::vector<Waiting*> users;
};

// Returns the weighted max-min fair rates of `streams`: in each round, the narrowest port's rate is assigned.
Rates fair(const std::vector<Stream*>& streams) {
  if (streams.size() == 1) {
    double rate = kEndless;
    for (const Port* port : streams[0]->ports) rate = std::min(rate, port->nbytes_per_s);
    return {{streams[0], rate}};
  }
  std::vector<Waiting> waiting;
  for (Stream* stream : streams) waiting.push_back({stream, stream->weight()});
  const auto waiting_of = [&waiting](const Stream* stream) {
    return std::find_if(waiting.begin(), waiting.end(), [&](const Waiting& each) { return each.stream == stream; });
  };
  std::vector<Shared> ports;
  const auto shared_of = [&ports](const Port* port) {
    return std::find_if(ports.begin(), ports.end(), [&](const Shared& each) { return each.port == port; });
  };
  for (const Stream* stream : streams) {
    for (Port* port : stream->ports) {
      if (shared_of(port) != ports.end()) continue;
      Shared shared{port, port->nbytes_per_s, {}};
      for (const Stream* user : port->streams) {
        const auto found = waiting_of(user);
        if (found != waiting.end()) shared.users.push_back(&*found);
      }
      ports.push_back(std::move(shared));
    }
  }
  Rates rates;
  while (rates.size() < streams.size()) {
    double unit = kEndless;
    Shared* narrowest = nullptr;
    for (Shared& each : ports) {
      if (each.users.empty()) continue;
      double weights = 0.0;
      for (const Waiting* user : each.users) weights += user->weight;
      if (each.left / weights < unit) {
        unit = each.left / weights;
        narrowest = &each;
      }
    }
    if (narrowest == nullptr) break;
    for (Waiting* user : narrowest->users) {
      const double rate = unit * user->weight;
      user->waits = false;
      rates.emplace_back(user->stream, rate);
      for (const Port* on_its_way : user->stream->ports) {
        const auto found = shared_of(on_its_way);
        found->left = std::max(0.0, found->left - rate);
      }
    }
    for (Shared& each : ports) std::erase_if(each.users, [](const Waiting* user) { return !user->waits; });
  }
  return rates;
}

}  // namespace

void Port::earn(double now_s) {
  if (burst_nbytes == 0.0) return;
  credit_nbytes = std::min(burst_nbytes, credit_nbytes + (now_s - idle_since_s) * nbytes_per_s);
}

Stream::Stream(const std::vector<Port*>& passed) : home(passed.front()) {
  for (Port* port : passed) {
    if (port->nbytes_per_s < kEndless) ports.push_back(port);
  }
}

double Stream::hold(double now_s, double nbytes) {
  if (frames.empty() && home->nbytes_per_s < kEndless) {
    double queued = 0.0;
    for (const Stream* other : home->streams) queued += std::min(kQueuedNbytes, other->left_nbytes(now_s));
    double waiting = 0.0;
    bool is_held = false;
    for (const auto& [other, held_nbytes] : home->held) {
      is_held |= other == this;
      if (other != this) waiting += held_nbytes;
    }
    held_s = std::max(held_s, now_s + (queued + waiting) / home->nbytes_per_s);
    if (held_s > now_s && !is_held) home->held.emplace_back(this, std::min(kQueuedNbytes, nbytes));
  }
  return std::max(held_s, now_s);
}

double Stream::left_nbytes(double now_s) const { return std::max(0.0, remaining - rate * (now_s - since_s)); }

double Stream::weight() const {
  const auto is_later = [this](const Stream* other) { return other->begun_s >= begun_s; };
  return std::all_of(home->streams.begin(), home->streams.end(), is_later) ? 1.0 : kNewcomer;
}

void Streams::push(Stream& stream, std::size_t frame, double nbytes, double now_s) {
  stream.frames.emplace_back(frame, nbytes);
  release(*stream.home, &stream);
  for (Port* port : stream.ports) port->carried_nbytes += nbytes;
  if (stream.frames.size() == 1) begin(stream, now_s);
}

std::optional<std::size_t> Streams::pass_first(Stream& stream, std::size_t version, double now_s) {
  if (version != stream.version) return std::nullopt;
  const std::size_t frame = stream.frames.front().first;
  stream.frames.pop_front();
  if (stream.frames.empty()) {
    end(stream, now_s);
  } else {
    stream.remaining = stream.frames.front().second;
    stream.since_s = now_s;
    announce(stream);
  }
  return frame;
}

void Streams::begin(Stream& stream, double now_s) {
  const double nbytes = stream.frames.front().second;
  stream.begun_s = now_s;
  double credit = stream.ports.empty() ? 0.0 : nbytes;
  for (Port* port : stream.ports) {
    if (port->streams.empty()) port->earn(now_s);
    port->streams.push_back(&stream);
    credit = std::min(credit, port->credit_nbytes);
  }
  for (Port* port : stream.ports) port->credit_nbytes -= credit;
  stream.remaining = nbytes - credit;
  stream.since_s = now_s;
  stream.rate = 0.0;
  share(together({&stream}), now_s);
}

void Streams::end(Stream& stream, double now_s) {
  ++stream.version;
  std::vector<Stream*> others;
  for (Port* port : stream.ports) {
    std::erase(port->streams, &stream);
    if (port->streams.empty()) port->idle_since_s = now_s;
    for (Stream* other : port->streams) {
      if (!contains(others, other)) others.push_back(other);
    }
  }
  if (!others.empty()) share(together(std::move(others)), now_s);
}

// Sets the rates of `streams`, which share ports with no other stream.
void Streams::share(const std::vector<Stream*>& streams, double now_s) {
  for (const auto& [stream, rate] : fair(streams)) {
    if (rate == stream->rate) continue;
    stream->remaining = stream->left_nbytes(now_s);
    stream->since_s = now_s;
    stream->rate = rate;
    announce(*stream);
  }
}

void Streams::announce(Stream& stream) {
  ++stream.version;
  schedule_(stream.ends_s(), stream, stream.version);
}

}  // namespace gradwire::replay
