#include "port.h"

#include <linux/if_packet.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "packet.h"

namespace gradwire::nic {

namespace {

constexpr int kBatch = 32;
constexpr std::size_t kMostFrameNbytes = kEthernetNbytes + (std::size_t{1} << 16);
constexpr std::size_t kTagNbytes = 4;
constexpr std::size_t kSlotNbytes = (kTagNbytes + kMostFrameNbytes + 63) / 64 * 64;
constexpr std::size_t kControlNbytes = CMSG_SPACE(sizeof(tpacket_auxdata));
constexpr std::size_t kOutboxNbytes = std::size_t{1} << 20;
constexpr unsigned kVlan = 0x8100;

const tpacket_auxdata* auxdata_of(msghdr& message) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level == SOL_PACKET && each->cmsg_type == PACKET_AUXDATA) {
      return reinterpret_cast<const tpacket_auxdata*>(CMSG_DATA(each));
    }
  }
  return nullptr;
}

// The kernel removes a frame's VLAN tag; insert it again.
Frame tagged(Frame frame, const tpacket_auxdata& auxdata) {
  const bool is_named = (auxdata.tp_status & TP_STATUS_VLAN_TPID_VALID) != 0;
  std::memmove(frame.data - kTagNbytes, frame.data, 12);
  frame.data -= kTagNbytes;
  frame.size += kTagNbytes;
  put16(frame.data + 12, is_named ? auxdata.tp_vlan_tpid : kVlan);
  put16(frame.data + 14, auxdata.tp_vlan_tci);
  frame.offload.headers_nbytes = static_cast<std::uint16_t>(frame.offload.headers_nbytes + kTagNbytes);
  frame.offload.checksum_start = static_cast<std::uint16_t>(frame.offload.checksum_start + kTagNbytes);
  return frame;
}

}  // namespace

bool wait_for(int descriptor, short events, int stop, std::optional<Clock::time_point> due) {
  std::array<pollfd, 2> awaited = {{{descriptor, events, 0}, {stop, POLLIN, 0}}};
  timespec limit{};
  if (due) {
    const auto left = std::max(Clock::duration::zero(), *due - Clock::now());
    limit.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
    limit.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count() % 1'000'000'000;
  }
  ppoll(awaited.data(), awaited.size(), due ? &limit : nullptr, nullptr);
  return awaited[1].revents == 0;
}

Inbox::Inbox(int descriptor)
    : descriptor_(descriptor),
      memory_(kBatch * kSlotNbytes),
      offloads_(kBatch),
      parts_(2 * kBatch),
      messages_(kBatch),
      control_(kBatch * kControlNbytes) {}

int Inbox::fill() {
  for (std::size_t i = 0; i < kBatch; ++i) {
    parts_[2 * i] = {&offloads_[i], sizeof(Offload)};
    parts_[2 * i + 1] = {memory_.data() + i * kSlotNbytes + kTagNbytes, kMostFrameNbytes};
    msghdr& message = messages_[i].msg_hdr;
    message = {};
    message.msg_iov = &parts_[2 * i];
    message.msg_iovlen = 2;
    message.msg_control = control_.data() + i * kControlNbytes;
    message.msg_controllen = kControlNbytes;
  }
  return recvmmsg(descriptor_, messages_.data(), kBatch, MSG_DONTWAIT, nullptr);
}

std::optional<Frame> Inbox::frame_at(int index) {
  const auto i = static_cast<std::size_t>(index);
  mmsghdr& message = messages_[i];
  if ((message.msg_hdr.msg_flags & MSG_TRUNC) != 0) return std::nullopt;
  if (message.msg_len < sizeof(Offload) + kEthernetNbytes) return std::nullopt;
  const Frame frame{memory_.data() + i * kSlotNbytes + kTagNbytes, message.msg_len - sizeof(Offload),
                    offloads_[i]};
  const tpacket_auxdata* const auxdata = auxdata_of(message.msg_hdr);
  if (auxdata == nullptr || (auxdata->tp_status & TP_STATUS_VLAN_VALID) == 0) return frame;
  return tagged(frame, *auxdata);
}

Outbox::Outbox(int descriptor, int stop, Counters& counters)
    : descriptor_(descriptor), stop_(stop), counters_(counters), memory_(kOutboxNbytes + kSlotNbytes) {}

void Outbox::add(const Byte* data, std::size_t size, const Offload& offload) {
  if (size > kSlotNbytes) return counters_.add(Count::unsent);
  if (used_ + size > kOutboxNbytes) flush();
  std::memcpy(memory_.data() + used_, data, size);
  entries_.push_back({used_, size, offload});
  used_ += size;
}

bool Outbox::flush() {
  bool goes_on = true;
  for (std::size_t first = 0; first < entries_.size() && goes_on;) {
    const int sent = send(first);
    if (sent > 0) {
      for (const std::size_t end = first + static_cast<std::size_t>(sent); first < end; ++first) {
        counters_.add(Count::frames_out);
        counters_.add(Count::bytes_out, entries_[first].size);
      }
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      goes_on = wait_for(descriptor_, POLLOUT, stop_, std::nullopt);
    } else if (errno != EINTR) {
      counters_.add(Count::unsent);
      ++first;
    }
  }
  entries_.clear();
  used_ = 0;
  return goes_on;
}

int Outbox::send(std::size_t first) {
  std::array<mmsghdr, kBatch> messages{};
  std::array<iovec, 2 * kBatch> parts;
  const std::size_t count = std::min<std::size_t>(kBatch, entries_.size() - first);
  for (std::size_t i = 0; i < count; ++i) {
    Entry& entry = entries_[first + i];
    parts[2 * i] = {&entry.offload, sizeof(Offload)};
    parts[2 * i + 1] = {memory_.data() + entry.at, entry.size};
    messages[i].msg_hdr.msg_iov = &parts[2 * i];
    messages[i].msg_hdr.msg_iovlen = 2;
  }
  return sendmmsg(descriptor_, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
}

}  // namespace gradwire::nic
