// The Python bindings of the engine. The arguments are addresses and lengths; the result is an outcome and the state of
// the connections.
#include "bind_engine.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/run.h"
#include "gradwire/float_environment.h"

namespace nb = nanobind;

namespace gradwire {

namespace {

using engine::Byte;

template <typename T>
T* pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

nb::bytes as_bytes(const Byte* data, std::size_t nbytes) {
  return nb::bytes(reinterpret_cast<const char*>(data), nbytes);
}

nb::bytes as_bytes(const std::vector<Byte>& data) { return as_bytes(data.data(), data.size()); }

// Rank, descriptor, length, low-water mark, and the sequence numbers of the next frames sent and received.
using PeerTuple = std::tuple<std::int64_t, int, nb::bytes, int, std::uint32_t, std::uint32_t>;
// The number of parameters, and the addresses of bucket, starts, counts and borders.
using CopiesTuple = std::tuple<std::size_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t>;
// Addresses of errors, borders and sums, and the number of ranges.
using ErrorsTuple = std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::size_t>;
using Numbers = std::tuple<int, int, int>;
using Times = std::tuple<double, double, double>;
// A format's name ("" for a part with a coder), its parameters, those for sums, the codec's number and fingerprint, and
// whether the codec is exact.
using CodecTuple = std::tuple<std::string, Numbers, Numbers, std::uint8_t, std::uint32_t, bool>;
// A payload's largest size, by the number of values.
using MostMap = std::map<std::size_t, std::size_t>;
// First the address of the values; last the sizes of the payloads that a coder encodes and decodes, if any.
using PartTuple = std::tuple<std::uintptr_t, CodecTuple, std::optional<ErrorsTuple>, std::optional<CopiesTuple>,
                             std::optional<MostMap>>;
// Whether all sums are finite, whether all errors are, and the bytes of floats that were sent.
using PartResult = std::tuple<bool, bool, std::uint64_t>;

// Whether the interpreter is about to end. A thread that then returned to it would be unwound through C++ frames, which
// aborts the process. So a thread that is still in a run waits for the end of the process, but not the thread that ends
// the interpreter, which may run exit handlers.
std::atomic<bool> interpreter_ends{false};
std::thread::id ending_thread;  // written before `interpreter_ends`

bool must_stay_out() { return interpreter_ends.load() && std::this_thread::get_id() != ending_thread; }

// The number of threads within a run that are in Python, or about to be.
std::atomic<int> in_python{0};

// A scope within a run in which the thread may hold the interpreter lock. hold_threads waits for its end.
class InPython {
 public:
  InPython() {
    ++in_python;
    if (!must_stay_out()) return;
    --in_python;
    for (;;) ::pause();
  }
  ~InPython() { --in_python; }
  InPython(const InPython&) = delete;
  InPython& operator=(const InPython&) = delete;
};

constexpr std::chrono::milliseconds kMoment{1};
constexpr int kMostMoments = 5000;

// Keeps the threads of runs out of Python from now on, and waits until those in Python have left it, at most 5 s.
void hold_threads() {
  ending_thread = std::this_thread::get_id();
  interpreter_ends.store(true);
  const nb::gil_scoped_release release;
  for (int i = 0; in_python.load() > 0 && i < kMostMoments; ++i) std::this_thread::sleep_for(kMoment);
}

nb::object as_memory(const Byte* data, std::size_t nbytes) {
  auto* const first = reinterpret_cast<char*>(const_cast<Byte*>(data));
  return nb::steal(PyMemoryView_FromMemory(first, static_cast<Py_ssize_t>(nbytes), PyBUF_WRITE));
}

// A coder in Python, which holds the interpreter lock.
class PythonCoder : public engine::Coder {
 public:
  // `raised` becomes the error that Python raises.
  PythonCoder(nb::object calls, nb::object& raised) : calls_(std::move(calls)), raised_(raised) {}

  bool encode(std::size_t action, Byte* payload, std::size_t most_nbytes, std::size_t& nbytes) override {
    return call([&] {
      nbytes = nb::cast<std::size_t>(calls_.attr("encode")(action, as_memory(payload, most_nbytes)));
      if (nbytes <= most_nbytes) return;
      PyErr_SetString(PyExc_ValueError, "expected a payload of at most max_nbytes, got a longer one; return a view of out");
      throw nb::python_error();
    });
  }

  bool sent(std::size_t action, const Byte* payload, std::size_t nbytes) override {
    return call([&] { calls_.attr("sent")(action, as_memory(payload, nbytes)); });
  }

  bool take(std::size_t action, const Byte* payload, std::size_t nbytes) override {
    return call([&] { calls_.attr("take")(action, as_memory(payload, nbytes)); });
  }

 private:
  template <typename Work>
  bool call(const Work& work) {
    const InPython here;
    const nb::gil_scoped_acquire acquire;
    const FloatEnvironment kept;  // if Python changes it, the run's next kernels must not notice
    try {
      work();
      return true;
    } catch (nb::python_error& error) {
      raised_ = nb::borrow(error.value());
      return false;
    }
  }

  nb::object calls_;
  nb::object& raised_;
};

// The state of one connection after a run.
struct End {
  std::int64_t rank;
  nb::bytes length;
  int low_water;
  std::uint32_t next_sent;
  std::uint32_t next_received;
  std::vector<nb::bytes> unsent;
  std::vector<nb::bytes> received;  // whole frames that no action has used
  std::size_t open;                 // the number of posted receives without a whole frame
  std::optional<std::pair<std::size_t, nb::bytes>> partial;  // the first one's size, and its bytes so far
};

End end_of(const engine::Peer& peer) {
  const engine::Connection& each = peer.connection;
  End end{peer.rank, as_bytes(each.length()), each.low_water(), peer.next_sent, peer.next_received, {}, {}, 0, {}};
  for (const auto& bytes : each.unsent()) end.unsent.push_back(as_bytes(bytes));
  for (const engine::Incoming& incoming : each.incoming()) {
    if (incoming.done) {
      end.received.push_back(as_bytes(incoming.buffer, incoming.nbytes));
    } else {
      if (end.open == 0 && each.is_within_frame()) {
        end.partial = {incoming.nbytes, as_bytes(incoming.buffer, each.filled())};
      }
      ++end.open;
    }
  }
  return end;
}

struct Result {
  engine::Outcome outcome;
  std::vector<End> ends;
  Times times;
  nb::object interrupt = nb::none();
};

const Format& format(const std::string& name) {
  const Format* found = find_format(name.c_str());
  if (found == nullptr) throw std::invalid_argument("no compiled format is named " + name);
  return *found;
}

Params params_of(const Numbers& numbers) {
  return {std::get<0>(numbers), std::get<1>(numbers), std::get<2>(numbers)};
}

engine::Part part_of(const PartTuple& part, engine::Coder* coder) {
  const auto& [values, codec, errors, copies, most] = part;
  const auto& [name, params, of_sums, codec_id, fingerprint, exact] = codec;
  engine::Part made{pointer<float>(values),
                    {most ? nullptr : &format(name), params_of(params), params_of(of_sums), codec_id, fingerprint, exact},
                    {},
                    {}};
  if (most) {
    if (coder == nullptr) throw std::invalid_argument("a part has neither a compiled format nor a coder");
    made.coder = coder;
    made.most = *most;
  }
  if (errors) {
    const auto& [lost, borders, sums, ranges] = *errors;
    made.errors = {pointer<float>(lost), pointer<const std::int64_t>(borders), ranges, pointer<double>(sums)};
  }
  if (copies) {
    const auto& [parameters, bucket, starts, counts, borders] = *copies;
    made.copies = {pointer<float>(bucket), pointer<const std::int64_t>(starts), pointer<const std::int64_t>(counts),
                   pointer<const std::int64_t>(borders), parameters};
  }
  return made;
}

Result run(engine::Engine& self, const std::vector<PeerTuple>& ends, std::uintptr_t actions, std::size_t numbers,
           std::size_t segments, std::size_t segment_count, const std::vector<PartTuple>& parts, std::uint16_t flags,
           float ranks, const std::optional<nb::object>& coder, double timeout_s, const Times& times, int threads,
           bool heeds_interrupts) {
  const auto* const rows = pointer<const engine::Action>(actions);
  engine::Request request{rows, numbers / engine::kRowLength, {}, segment_count, segments, flags, ranks, timeout_s,
                          threads};
  std::vector<engine::Peer> peers;
  for (const auto& [rank, descriptor, length, low_water, next_sent, next_received] : ends) {
    const auto* const head = reinterpret_cast<const Byte*>(length.c_str());
    peers.push_back({rank, engine::Connection(descriptor, head, length.size(), low_water), next_sent, next_received});
  }
  engine::Activity activity{std::get<0>(times), std::get<1>(times), std::get<2>(times)};
  Result result;
  std::optional<PythonCoder> calls;
  if (coder) calls.emplace(*coder, result.interrupt);
  for (const PartTuple& part : parts) request.parts.push_back(part_of(part, calls ? &*calls : nullptr));
  std::function<bool()> is_interrupted;
  if (heeds_interrupts) {
    is_interrupted = [&result] {
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() == 0) return false;
      const nb::python_error raised;
      result.interrupt = nb::borrow(raised.value());
      return true;
    };
  }
  {
    const nb::gil_scoped_release release;
    result.outcome = self.run(request, peers, activity, is_interrupted);
    while (must_stay_out()) ::pause();
  }
  for (const engine::Peer& peer : peers) result.ends.push_back(end_of(peer));
  result.times = {activity.moved_s, activity.heard_s, activity.sent_s};
  return result;
}

}  // namespace

void bind_engine(nb::module_& m) {
  nb::enum_<engine::Status>(m, "Status")
      .value("DONE", engine::Status::done)
      .value("FRAME_REFUSED", engine::Status::frame_refused)
      .value("PAYLOAD_REFUSED", engine::Status::payload_refused)
      .value("LINK_FAILED", engine::Status::link_failed)
      .value("TIMED_OUT", engine::Status::timed_out)
      .value("INTERRUPTED", engine::Status::interrupted);
  nb::class_<End>(m, "End")
      .def_ro("rank", &End::rank)
      .def_ro("length", &End::length)
      .def_ro("low_water", &End::low_water)
      .def_ro("next_sent", &End::next_sent)
      .def_ro("next_received", &End::next_received)
      .def_ro("unsent", &End::unsent)
      .def_ro("received", &End::received)
      .def_ro("open", &End::open)
      .def_ro("partial", &End::partial);
  nb::class_<Result>(m, "Result")
      .def_prop_ro("status", [](const Result& self) { return self.outcome.status; })
      .def_prop_ro("action", [](const Result& self) { return self.outcome.action; })
      .def_prop_ro("error", [](const Result& self) { return self.outcome.fault.error; })
      .def_prop_ro("announced", [](const Result& self) { return self.outcome.fault.announced; })
      .def_prop_ro("refused", [](const Result& self) { return as_bytes(self.outcome.refused); })
      .def_prop_ro("posted", [](const Result& self) { return self.outcome.posted; })
      .def_prop_ro("parts",
                   [](const Result& self) {
                     std::vector<PartResult> found;
                     for (const engine::PartOutcome& each : self.outcome.parts) {
                       found.emplace_back(each.finite, each.lost_finite, each.raw_nbytes);
                     }
                     return found;
                   })
      .def_prop_ro("seconds",
                   [](const Result& self) {
                     return Times{self.outcome.encode_s, self.outcome.decode_s, self.outcome.wait_s};
                   })
      .def_prop_ro("sizes",
                   [](const Result& self) {
                     return std::pair{self.outcome.wire_nbytes, self.outcome.frames};
                   })
      .def_ro("ends", &Result::ends)
      .def_ro("times", &Result::times)
      .def_ro("interrupt", &Result::interrupt);
  m.def("hold_threads", &hold_threads);
  nb::class_<engine::Engine>(m, "Engine").def(nb::init<>()).def("run", &run);
}

}  // namespace gradwire
