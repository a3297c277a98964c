// The connection to one peer, and its frames in flight; the native counterpart of gradwire/links/channel.py.
//
// The 8 bytes of a frame's length are sent before the frame. A length of all ones, without a frame, is a keepalive.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "frame.h"

namespace gradwire::engine {

constexpr std::size_t kLengthNbytes = 8;
constexpr std::uint64_t kKeepalive = ~std::uint64_t{0};
// The largest frame, as wire.MAX_FRAME_NBYTES.
constexpr std::size_t kMostFrameNbytes = std::size_t{1} << 25;

// Seconds of the monotonic clock, as Python's time.monotonic().
double now_s();

// The times at which part of a frame last moved, and at which a keepalive was last received and last sent.
struct Activity {
  double moved_s;
  double heard_s;
  double sent_s;
};

// The reason why a connection can no longer send, or receive.
struct Fault {
  enum class Kind { none, ended, system, oversized };

  Kind kind = Kind::none;
  int error = 0;                // errno, for `system`
  std::uint64_t announced = 0;  // the frame's length, for `oversized`

  explicit operator bool() const { return kind != Kind::none; }
};

// A frame to send, in one or two parts of memory.
struct FrameParts {
  const Byte* head;  // null for a keepalive
  std::size_t head_nbytes;
  const Byte* body = nullptr;
  std::size_t body_nbytes = 0;

  std::size_t nbytes() const { return head_nbytes + body_nbytes; }
};

// A posted receive.
struct Incoming {
  Byte* buffer;
  std::size_t nbytes;
  bool done;
};

class Connection {
 public:
  // `length` has the `filled` bytes of the next frame's length that have arrived; `low_water` is the socket's
  // SO_RCVLOWAT.
  Connection(int descriptor, const Byte* length, std::size_t filled, int low_water);

  int descriptor() const { return descriptor_; }
  const Fault& send_fault() const { return send_fault_; }
  const Fault& receive_fault() const { return receive_fault_; }

  // Starts to send a frame, and returns its ticket. The frame must not change until `has_sent` is true for the ticket.
  std::uint64_t send(const FrameParts& frame, Activity& activity);
  bool has_sent(std::uint64_t ticket) const { return sent_ >= ticket; }
  bool is_sending() const { return !outgoing_.empty() && !send_fault_; }
  void send_keepalive(Activity& activity);

  // Starts to receive a frame into a buffer of kMostFrameNbytes.
  void post(Byte* buffer);
  bool has_frame() const { return !incoming_.empty() && incoming_.front().done; }
  Incoming take_frame();
  bool is_receiving() const { return !incoming_.empty() && !incoming_.back().done && !receive_fault_; }
  // Returns whether no receive is posted, so that only a keepalive should arrive next.
  bool expects_keepalive() const { return !is_receiving() && !receive_fault_ && filled_ < kLengthNbytes; }

  // Sends as many bytes as the kernel accepts.
  void push(Activity& activity);
  // Receives the bytes of posted receives that have arrived and, if `listening`, keepalives.
  void pull(bool listening, Activity& activity);

  // The frames that are still in flight, and the state of the socket, with which the caller continues.
  int low_water() const { return low_water_; }
  std::vector<Byte> length() const;
  std::vector<std::vector<Byte>> unsent() const;
  const std::deque<Incoming>& incoming() const { return incoming_; }
  // Whether the length of the first incomplete receive's frame has arrived (in `nbytes`), and how many bytes of the
  // frame, or else of the length, have arrived.
  bool is_within_frame() const { return within_frame_; }
  std::size_t filled() const { return filled_; }

 private:
  struct Outgoing {
    std::array<Byte, kLengthNbytes> length;
    FrameParts frame;
    std::size_t sent;  // bytes of the length and the frame

    std::size_t left() const { return kLengthNbytes + frame.nbytes() - sent; }
    // Calls work(data, nbytes) for each remaining part.
    template <typename Work>
    void for_each_part(const Work& work) const {
      std::size_t before = 0;
      const auto part = [&](const Byte* data, std::size_t nbytes) {
        const std::size_t skipped = std::clamp(sent, before, before + nbytes) - before;
        if (skipped < nbytes) work(data + skipped, nbytes - skipped);
        before += nbytes;
      };
      part(length.data(), length.size());
      part(frame.head, frame.head_nbytes);
      part(frame.body, frame.body_nbytes);
    }
  };

  void queue(std::uint64_t length, const FrameParts& frame, Activity& activity);
  Incoming& first_open();
  void go_on(Activity& activity);
  void wake_at(std::size_t nbytes);

  int descriptor_;
  std::deque<Outgoing> outgoing_;
  std::uint64_t queued_ = 0;
  std::uint64_t sent_ = 0;
  std::deque<Incoming> incoming_;
  std::size_t done_ = 0;  // the number of completed receives
  std::array<Byte, kLengthNbytes> length_{};
  std::size_t filled_;
  bool within_frame_ = false;
  int low_water_;
  Fault send_fault_;
  Fault receive_fault_;
};

}  // namespace gradwire::engine
