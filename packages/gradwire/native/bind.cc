// The Python bindings of the kernels. Only the bind*.cc files know Python. The arguments are addresses and
// lengths, and the GIL is released during every kernel.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bind_engine.h"
#include "bind_replay.h"
#include "gradwire/delta.h"
#include "gradwire/entropy.h"
#include "gradwire/float_environment.h"
#include "gradwire/format.h"
#include "gradwire/losses.h"
#include "gradwire/message.h"
#include "gradwire/norms.h"
#include "gradwire/scale.h"
#include "gradwire/target.h"
#include "nic/nic.h"

namespace nb = nanobind;

namespace {

using gradwire::Format;
using gradwire::Params;

const Format& format(const std::string& name) {
  const Format* found = gradwire::find_format(name.c_str());
  if (found == nullptr) throw std::invalid_argument("no compiled format is named " + name);
  return *found;
}

template <typename T>
T* pointer(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

std::optional<std::string> reason_of(const char* reason) {
  if (reason == nullptr) return std::nullopt;
  return std::string(reason);
}

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for (auto* const* target = gradwire::available_targets(); *target != nullptr; ++target) {
    names.emplace_back((*target)->name);
  }
  return names;
}

std::size_t max_nbytes(const std::string& name, std::size_t n, int a, int b, int c) {
  return format(name).max_nbytes(n, Params{a, b, c});
}

std::size_t encode(const std::string& name, std::uintptr_t x, std::size_t n, std::uintptr_t out, int a, int b, int c,
                   int threads) {
  const Format& chosen = format(name);
  const nb::gil_scoped_release release;
  const gradwire::FloatEnvironment environment;
  return chosen.encode(gradwire::current_target(), pointer<const float>(x), n, pointer<std::uint8_t>(out),
                       Params{a, b, c}, threads);
}

std::optional<std::string> decode(const std::string& name, std::uintptr_t payload, std::size_t nbytes,
                                  std::uintptr_t out, std::size_t n, int a, int b, int c, bool add, int threads) {
  const Format& chosen = format(name);
  const char* reason = nullptr;
  {
    const nb::gil_scoped_release release;
    const gradwire::FloatEnvironment environment;
    reason = chosen.decode(gradwire::current_target(), pointer<const std::uint8_t>(payload), nbytes,
                           pointer<float>(out), n, Params{a, b, c}, add, threads);
  }
  return reason_of(reason);
}

std::uint32_t largest_bits(std::uintptr_t x, std::size_t n, int threads) {
  const nb::gil_scoped_release release;
  return gradwire::largest_bits(pointer<const float>(x), n, threads);
}

void scale(std::uintptr_t x, std::uintptr_t out, std::size_t n, int exponent, bool add, int threads) {
  const nb::gil_scoped_release release;
  const gradwire::FloatEnvironment environment;
  gradwire::scale(pointer<const float>(x), pointer<float>(out), n, exponent, add, threads);
}

double sum_norms(gradwire::Pass pass, std::uintptr_t x, std::uintptr_t y, std::size_t n, std::size_t start,
                 std::uintptr_t borders, std::size_t ranges, std::uintptr_t sums, int threads) {
  const nb::gil_scoped_release release;
  const gradwire::FloatEnvironment environment;
  return gradwire::sum_norms(gradwire::current_target(), pass, pointer<float>(x), pointer<float>(y), n, start,
                             pointer<const std::int64_t>(borders), ranges, pointer<double>(sums), threads);
}

bool has_ranges(const std::string& name) { return format(name).ranges != nullptr; }

std::tuple<std::optional<std::string>, double, bool> lose(const std::string& name, std::uintptr_t data,
                                                          std::size_t nbytes, std::uintptr_t x, std::uintptr_t lost,
                                                          std::size_t n, int a, int b, int c, bool adopts,
                                                          float divisor, std::size_t start, std::uintptr_t borders,
                                                          std::size_t ranges, std::uintptr_t sums, bool compares,
                                                          int threads) {
  const gradwire::Payload payload{format(name), Params{a, b, c}, pointer<const std::uint8_t>(data), nbytes};
  const gradwire::RangeSums into{start, pointer<const std::int64_t>(borders), ranges, pointer<double>(sums), compares};
  gradwire::Loss loss{};
  {
    const nb::gil_scoped_release release;
    const gradwire::FloatEnvironment environment;
    loss = gradwire::lose(gradwire::current_target(), payload, pointer<float>(x), pointer<float>(lost), n, adopts,
                          divisor, into, threads);
  }
  return {reason_of(loss.fault), loss.lost, loss.finite};
}

std::tuple<std::optional<std::string>, bool> decode_finished(const std::string& name, std::uintptr_t data,
                                                             std::size_t nbytes, std::uintptr_t x, std::size_t n, int a,
                                                             int b, int c, float divisor, int threads) {
  const gradwire::Payload payload{format(name), Params{a, b, c}, pointer<const std::uint8_t>(data), nbytes};
  const char* reason = nullptr;
  bool finite = false;
  {
    const nb::gil_scoped_release release;
    const gradwire::FloatEnvironment environment;
    reason = gradwire::decode_finished(gradwire::current_target(), payload, pointer<float>(x), n, divisor, finite,
                                       threads);
  }
  return {reason_of(reason), finite};
}

bool finish(std::uintptr_t x, std::size_t n, float divisor, int threads) {
  const nb::gil_scoped_release release;
  const gradwire::FloatEnvironment environment;
  return gradwire::finish(gradwire::current_target(), pointer<float>(x), n, divisor, threads);
}

using PackedTuple = std::tuple<std::uintptr_t, std::size_t, std::uintptr_t, int, bool>;

std::vector<double> pack_message(const std::vector<PackedTuple>& tensors, int threads) {
  const nb::gil_scoped_release release;
  const gradwire::FloatEnvironment environment;
  std::vector<gradwire::PackedTensor> all;
  for (const auto& [x, n, out, bits, summed] : tensors) {
    all.push_back({pointer<const float>(x), n, pointer<std::uint8_t>(out), bits, summed});
  }
  std::vector<double> sums(all.size());
  gradwire::pack_message(gradwire::current_target(), all.data(), all.size(), sums.data(), threads);
  return sums;
}

std::size_t entropy_encode(std::uintptr_t symbols, std::size_t n, std::uintptr_t out, int threads) {
  const nb::gil_scoped_release release;
  const gradwire::FloatEnvironment environment;
  return gradwire::entropy_encode(gradwire::current_target(), pointer<const std::uint8_t>(symbols), n,
                                  pointer<std::uint8_t>(out), threads);
}

const char* run_entropy_decode(std::uintptr_t payload, std::size_t nbytes, std::uintptr_t out, std::size_t n,
                               int threads) {
  const nb::gil_scoped_release release;
  return gradwire::entropy_decode(gradwire::current_target(), pointer<const std::uint8_t>(payload), nbytes,
                                  pointer<std::uint8_t>(out), n, threads);
}

using SourceTuple = std::tuple<std::uintptr_t, std::uintptr_t, std::size_t, std::size_t, bool>;
using SpanTuple = std::tuple<std::size_t, std::size_t>;

// `fronts` has the fronts of all tensors, one after the other.
std::vector<SpanTuple> delta_encode(gradwire::Words words, const std::vector<SourceTuple>& sources,
                                    const nb::bytes& fronts, std::uintptr_t out, std::size_t align, bool code,
                                    int threads) {
  const auto* front = reinterpret_cast<const std::uint8_t*>(fronts.c_str());
  const nb::gil_scoped_release release;
  const gradwire::FloatEnvironment environment;
  std::vector<gradwire::DeltaSource> all;
  for (const auto& [masters, base, n, front_nbytes, hashed] : sources) {
    all.push_back({pointer<const float>(masters), pointer<void>(base), n, front, front_nbytes, hashed});
    front += front_nbytes;
  }
  std::vector<gradwire::Span> spans(all.size());
  gradwire::delta_encode_message(gradwire::current_target(), words, all.data(), all.size(), pointer<std::uint8_t>(out),
                                 align, spans.data(), code, threads);
  std::vector<SpanTuple> found;
  for (const auto& [begin, end] : spans) found.emplace_back(begin, end);
  return found;
}

using BodyTuple = std::tuple<std::uintptr_t, std::size_t, std::uintptr_t, std::size_t, bool, bool>;

std::tuple<std::size_t, const char*> run_delta_apply(gradwire::Words words, const std::vector<BodyTuple>& bodies,
                                                     int threads) {
  const nb::gil_scoped_release release;
  std::vector<gradwire::DeltaBody> all;
  for (const auto& [body, nbytes, base, n, full, plain] : bodies) {
    all.push_back({pointer<const std::uint8_t>(body), nbytes, pointer<void>(base), n, full, plain});
  }
  std::size_t applied = 0;
  const char* const reason = gradwire::delta_apply_message(gradwire::current_target(), words, all.data(), all.size(),
                                                           applied, threads);
  return {applied, reason};
}

std::tuple<std::size_t, std::optional<std::string>> delta_apply(gradwire::Words words,
                                                                const std::vector<BodyTuple>& bodies, int threads) {
  const auto [applied, reason] = run_delta_apply(words, bodies, threads);
  return {applied, reason_of(reason)};
}

std::uint64_t hash64(std::uintptr_t data, std::size_t nbytes, int threads) {
  const nb::gil_scoped_release release;
  return gradwire::hash64(gradwire::current_target(), pointer<const std::uint8_t>(data), nbytes, threads);
}

std::uint32_t crc32c(std::uintptr_t data, std::size_t nbytes, std::uint32_t seed) {
  const nb::gil_scoped_release release;
  return gradwire::current_target().crc32c(pointer<const std::uint8_t>(data), nbytes, seed);
}

std::uint32_t crc32c_of_bytes(const nb::bytes& data) {  // too few bytes to release the GIL for
  return gradwire::current_target().crc32c(static_cast<const std::uint8_t*>(data.data()), data.size(), 0);
}

namespace nic = gradwire::nic;

nic::Codec nic_codec(const std::string& name, int a, int b, int wire_id) {
  return {&format(name), Params{a, b, 0}, static_cast<nic::Byte>(wire_id)};
}

nb::bytes as_bytes(const nic::Byte* data, std::size_t nbytes) {
  return nb::bytes(reinterpret_cast<const char*>(data), nbytes);
}

const nic::Byte* data_of(const nb::bytes& data) { return reinterpret_cast<const nic::Byte*>(data.c_str()); }

nb::bytes nic_encode(const std::string& name, int a, int b, unsigned phase, const nb::bytes& payload) {
  const gradwire::FloatEnvironment environment;
  std::vector<nic::Byte> body(payload.size());
  nic::SegmentCoder coder(nic_codec(name, a, b, 0));
  const std::size_t nbytes = coder.encode(phase, data_of(payload), payload.size(), body.data(), payload.size());
  return as_bytes(body.data(), nbytes);
}

std::optional<nb::bytes> nic_decode(const std::string& name, int a, int b, unsigned phase, const nb::bytes& body,
                                    std::size_t nbytes) {
  const gradwire::FloatEnvironment environment;
  std::vector<nic::Byte> payload(nbytes);
  nic::SegmentCoder coder(nic_codec(name, a, b, 0));
  if (coder.decode(phase, data_of(body), body.size(), payload.data(), nbytes) != nullptr) return std::nullopt;
  return as_bytes(payload.data(), nbytes);
}

// Passes a frame through a NIC. If cut_nbytes isn't 0, the frame is one that the kernel would cut into segments and
// whose checksum it would complete. The checksums of the resulting frames are complete.
std::vector<nb::bytes> nic_handle(nic::Engine& engine, bool to_link, const nb::bytes& frame, unsigned cut_nbytes) {
  const gradwire::FloatEnvironment environment;
  std::vector<nic::Byte> copy(data_of(frame), data_of(frame) + frame.size());
  nic::Offload offload;
  if (cut_nbytes > 0) {
    offload.flags = nic::kNeedsChecksum;
    offload.cut = 1;
    offload.cut_nbytes = static_cast<std::uint16_t>(cut_nbytes);
  }
  std::vector<nb::bytes> frames;
  const nic::Emit emit = [&](const nic::Byte* data, std::size_t size, const nic::Offload& left) {
    std::vector<nic::Byte> whole(data, data + size);
    nic::complete(whole.data(), size, left);
    frames.push_back(as_bytes(whole.data(), size));
  };
  const nic::Frame taken{copy.data(), copy.size(), offload};
  to_link ? engine.to_link(taken, emit) : engine.to_host(taken, emit);
  return frames;
}

template <typename Read>
std::vector<std::uint64_t> nic_counts(const Read& read) {
  std::vector<std::uint64_t> counts;
  for (std::size_t i = 0; i < nic::kCounts; ++i) counts.push_back(read(i));
  return counts;
}

void bind_nic(nb::module_& m) {
  m.def("nic_count_names", [] { return std::vector<std::string>(nic::kCountNames.begin(), nic::kCountNames.end()); });
  m.def("nic_encode", &nic_encode);
  m.def("nic_decode", &nic_decode);
  nb::class_<nic::Engine>(m, "NicEngine")
      .def("__init__",
           [](nic::Engine* self, const std::string& name, int a, int b, int wire_id, unsigned tos, bool merges) {
             new (self) nic::Engine(nic_codec(name, a, b, wire_id), tos, merges);
           },
           nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg("merges") = false)
      .def("handle", &nic_handle)
      .def("counts", [](nic::Engine& self, bool to_link) {
        return nic_counts([&](std::size_t i) { return self.counters(to_link)[i]; });
      });
  nb::class_<nic::Nic>(m, "Nic")
      .def("__init__",
           [](nic::Nic* self, int host, int link, const std::string& name, int a, int b, int wire_id, unsigned tos,
              bool merges, double drop, double reorder, double delay_s, std::uint64_t seed) {
             new (self) nic::Nic(host, link, nic_codec(name, a, b, wire_id), tos, merges, {drop, reorder, delay_s, seed});
           })
      .def("stop", &nic::Nic::stop, nb::call_guard<nb::gil_scoped_release>())
      .def("counts", [](nic::Nic& self, bool to_link) {
        return nic_counts([&](std::size_t i) { return self.count(to_link, i); });
      });
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // an engine lives as long as its link, maybe until the process ends
  m.def("available_targets", &available_targets);
  m.def("target", [] { return std::string(gradwire::current_target().name); });
  m.def("set_target", [](const std::string& name) { return gradwire::set_target(name.c_str()); });
  m.def("max_nbytes", &max_nbytes);
  m.def("encode", &encode);
  m.def("decode", &decode);
  m.def("largest_bits", &largest_bits);
  m.def("scale", &scale);
  nb::enum_<gradwire::Pass>(m, "Pass")
      .value("LOOK", gradwire::Pass::look)
      .value("ADD", gradwire::Pass::add)
      .value("SUBTRACT", gradwire::Pass::subtract)
      .value("ADOPT", gradwire::Pass::adopt);
  m.def("sum_norms", &sum_norms);
  m.def("has_ranges", &has_ranges);
  m.def("lose", &lose);
  m.def("decode_finished", &decode_finished);
  m.def("finish", &finish);
  m.def("pack_message", &pack_message);
  m.def("entropy_max_nbytes", &gradwire::entropy_max_nbytes);
  m.def("entropy_encode", &entropy_encode);
  m.def("entropy_decode", [](std::uintptr_t payload, std::size_t nbytes, std::uintptr_t out, std::size_t n,
                             int threads) { return reason_of(run_entropy_decode(payload, nbytes, out, n, threads)); });
  nb::enum_<gradwire::Words>(m, "Words").value("BF16", gradwire::Words::bf16).value("FP32", gradwire::Words::fp32);
  m.def("delta_max_nbytes", &gradwire::delta_max_nbytes);
  m.def("delta_encode", &delta_encode);
  m.def("delta_apply", &delta_apply);
  m.def("hash64", &hash64);
  m.def("crc32c", &crc32c);
  m.def("crc32c_of_bytes", &crc32c_of_bytes);
  bind_nic(m);
  gradwire::bind_engine(m);
  gradwire::bind_replay(m);
}
