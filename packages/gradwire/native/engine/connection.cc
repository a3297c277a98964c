#include "connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "kernels/bits.h"

namespace gradwire::engine {

namespace {

constexpr std::size_t kMostAtOnce = 8;
// The most bytes for which a sleep waits: less than a large frame, so that copies overlap the frame's transfer.
constexpr std::size_t kMostLowWater = std::size_t{1} << 17;

bool is_for_later(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Connection::Connection(int descriptor, const Byte* length, std::size_t filled, int low_water)
    : descriptor_(descriptor), filled_(std::min(filled, kLengthNbytes)), low_water_(low_water) {
  std::copy_n(length, filled_, length_.begin());
}

std::uint64_t Connection::send(const FrameParts& frame, Activity& activity) {
  queue(frame.nbytes(), frame, activity);
  return queued_;
}

void Connection::send_keepalive(Activity& activity) {
  if (outgoing_.empty() && !send_fault_) queue(kKeepalive, {nullptr, 0}, activity);
}

void Connection::queue(std::uint64_t length, const FrameParts& frame, Activity& activity) {
  Outgoing each{{}, frame, 0};
  store_word(each.length.data(), length);
  outgoing_.push_back(each);
  ++queued_;
  if (outgoing_.size() == 1) push(activity);
}

void Connection::post(Byte* buffer) { incoming_.push_back({buffer, 0, false}); }

Incoming Connection::take_frame() {
  const Incoming taken = incoming_.front();
  incoming_.pop_front();
  --done_;
  return taken;
}

void Connection::push(Activity& activity) {
  while (is_sending()) {
    std::array<iovec, 3 * kMostAtOnce> parts{};
    std::size_t count = 0;
    for (std::size_t i = 0; i < std::min(outgoing_.size(), kMostAtOnce); ++i) {
      outgoing_[i].for_each_part([&](const Byte* data, std::size_t nbytes) {
        parts[count++] = {const_cast<Byte*>(data), nbytes};
      });
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t result = ::sendmsg(descriptor_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result < 0) {
      if (errno == EINTR) continue;
      if (!is_for_later(errno)) send_fault_ = {Fault::Kind::system, errno, 0};
      return;
    }
    auto left = static_cast<std::size_t>(result);
    while (left > 0) {
      Outgoing& each = outgoing_.front();
      const std::size_t taken = std::min(left, each.left());
      if (each.frame.head != nullptr) activity.moved_s = now_s();
      each.sent += taken;
      left -= taken;
      if (each.left() > 0) break;
      outgoing_.pop_front();
      ++sent_;
    }
  }
}

void Connection::pull(bool listening, Activity& activity) {
  while (is_receiving() || (listening && expects_keepalive())) {
    Byte* const memory = within_frame_ ? first_open().buffer : length_.data();
    const std::size_t size = within_frame_ ? first_open().nbytes : kLengthNbytes;
    if (filled_ < size) {
      const ssize_t result = ::recv(descriptor_, memory + filled_, size - filled_, MSG_DONTWAIT);
      if (result < 0 && errno == EINTR) continue;
      if (result < 0 && is_for_later(errno)) {
        wake_at(within_frame_ ? size - filled_ : 1);
        return;
      }
      if (result <= 0) {
        const auto kind = result == 0 ? Fault::Kind::ended : Fault::Kind::system;
        receive_fault_ = {kind, result == 0 ? 0 : errno, 0};
        return;
      }
      filled_ += static_cast<std::size_t>(result);
    }
    if (within_frame_) activity.moved_s = now_s();
    if (filled_ == size) go_on(activity);
  }
}

Incoming& Connection::first_open() { return incoming_[done_]; }

void Connection::go_on(Activity& activity) {
  if (within_frame_) {
    first_open().done = true;
    ++done_;
    within_frame_ = false;
    filled_ = 0;
    return;
  }
  const auto nbytes = load_word<std::uint64_t>(length_.data());
  if (nbytes == kKeepalive) {
    filled_ = 0;
    activity.heard_s = now_s();
  } else if (is_receiving()) {
    if (nbytes > kMostFrameNbytes) {
      receive_fault_ = {Fault::Kind::oversized, 0, nbytes};
      return;
    }
    first_open().nbytes = static_cast<std::size_t>(nbytes);
    within_frame_ = true;
    filled_ = 0;
  }
}

// Makes a poll return only once this many bytes have arrived, or the peer has closed the connection.
void Connection::wake_at(std::size_t nbytes) {
  const int wanted = static_cast<int>(std::min(nbytes, kMostLowWater));
  if (wanted == low_water_) return;
  low_water_ = wanted;
  ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

std::vector<Byte> Connection::length() const {
  if (within_frame_) return {};
  return {length_.begin(), length_.begin() + static_cast<std::ptrdiff_t>(filled_)};
}

std::vector<std::vector<Byte>> Connection::unsent() const {
  std::vector<std::vector<Byte>> rest;
  for (const Outgoing& each : outgoing_) {
    std::vector<Byte>& bytes = rest.emplace_back();
    each.for_each_part([&](const Byte* data, std::size_t nbytes) { bytes.insert(bytes.end(), data, data + nbytes); });
  }
  return rest;
}

}  // namespace gradwire::engine
