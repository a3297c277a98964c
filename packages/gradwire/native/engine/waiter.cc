#include "waiter.h"

#include <algorithm>
#include <cmath>
#include <ctime>

namespace gradwire::engine {

namespace {

// The number of keepalives per timeout; equal to links/base.SIGNS.
constexpr double kSigns = 4.0;
constexpr double kMoment = 0.001;
constexpr double kLongestSleep = 3600.0;
// The longest interval between two checks for interrupts, on a thread that must notice them.
constexpr double kInterruptible = 0.2;

}  // namespace

void Waiter::send_due_keepalives() {
  const double now = now_s();
  if (activity_.sent_s >= activity_.moved_s || now - activity_.sent_s <= timeout_s_ / kSigns) return;
  activity_.sent_s = now;
  for (Peer& peer : peers_) {
    if (peer.connection.expects_keepalive()) peer.connection.pull(true, activity_);  // so that keepalives don't accumulate
    peer.connection.send_keepalive(activity_);
  }
}

double Waiter::move_others(Connection& own, double began) {
  const double now = now_s();
  const bool listening = now - began > timeout_s_ / kSigns;
  awaited_.clear();
  for (Peer& peer : peers_) {
    Connection& each = peer.connection;
    const bool is_own = &each == &own;
    if (!is_own) {
      if (!(each.is_receiving() || each.is_sending() || listening)) continue;
      each.push(activity_);
    }
    if (listening || !is_own) each.pull(listening, activity_);
    const bool reads = each.is_receiving() || (listening && each.expects_keepalive());
    const int events = (reads ? POLLIN : 0) | (each.is_sending() ? POLLOUT : 0);
    if (events != 0 || is_own) awaited_.push_back({each.descriptor(), static_cast<short>(events), 0});
  }
  return std::max({began, activity_.moved_s, activity_.heard_s}) + timeout_s_ - now;
}

void Waiter::sleep(double left_s) {
  double most_s = std::min({left_s, timeout_s_ / kSigns + kMoment, kLongestSleep});
  if (is_interrupted_) most_s = std::min(most_s, kInterruptible);
  const timespec limit{static_cast<time_t>(most_s), static_cast<long>(1e9 * (most_s - std::floor(most_s)))};
  ::ppoll(awaited_.data(), awaited_.size(), &limit, nullptr);
  look_for_interrupts();
}

void Waiter::look_for_interrupts() {
  const double now = now_s();
  if (!is_interrupted_ || now - looked_s_ < kInterruptible) return;
  looked_s_ = now;
  was_interrupted_ = is_interrupted_();
}

}  // namespace gradwire::engine
