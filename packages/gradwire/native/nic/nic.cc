#include "nic.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "gradwire/float_environment.h"
#include "port.h"

namespace gradwire::nic {

namespace {

// A real NIC doesn't wait for its host's programs, so this thread gets a high priority, if permitted.
void take_precedence() {
  const sched_param first{.sched_priority = 1};
  sched_setscheduler(0, SCHED_RR, &first);
}

}  // namespace

Nic::Nic(int host, int link, const Codec& codec, unsigned tos, bool merges, const FaultSettings& faults)
    : engine_(codec, tos, merges), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (stop_ < 0) throw std::system_error(errno, std::generic_category());
  threads_[0] = std::thread([=, this] { run(true, host, link, faults); });
  threads_[1] = std::thread([=, this] { run(false, link, host, {}); });
}

void Nic::stop() {
  if (stop_ < 0) return;
  const std::uint64_t one = 1;
  while (write(stop_, &one, sizeof one) < 0 && errno == EINTR) {
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  close(stop_);
  stop_ = -1;
}

void Nic::run(bool to_link, int from, int to, const FaultSettings& settings) {
  const FloatEnvironment environment;
  take_precedence();
  Counters& counters = engine_.counters(to_link);
  Inbox inbox(from);
  Outbox outbox(to, stop_, counters);
  Faults faults(settings, counters);
  const Emit add = [&](const Byte* data, std::size_t size, const Offload& offload) {
    outbox.add(data, size, offload);
  };
  const Emit take = [&](const Byte* data, std::size_t size, const Offload& offload) {
    faults.take(data, size, offload, add);
  };
  while (wait_for(from, POLLIN, stop_, faults.next())) {
    faults.release(add);
    inbox.receive([&](const Frame& frame) { to_link ? engine_.to_link(frame, take) : engine_.to_host(frame, take); });
    if (!outbox.flush()) return;
  }
}

}  // namespace gradwire::nic
