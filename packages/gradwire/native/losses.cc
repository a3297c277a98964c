// Cuts a segment into tiles that stay in the L1 cache while several kernels process them.
#include "gradwire/losses.h"

#include <atomic>
#include <numeric>
#include <vector>

#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/norms.h"
#include "pieces.h"

namespace gradwire {

namespace {

constexpr std::size_t kTile = 2048;

std::size_t tile_of(std::size_t granule) { return (kTile + granule - 1) / granule * granule; }

// Calls hire(index) once per thread, and the resulting work(begin, end) for every tile.
template <typename Hire>
void for_each_tile(std::size_t n, std::size_t tile, int parts, const Hire& hire) {
  run_parts(parts, [&](int index) {
    const Part part = part_of(n, parts, index, tile);
    auto&& work = hire(index);
    for (std::size_t at = part.begin; at < part.end; at += tile) work(at, std::min(part.end, at + tile));
  });
}

struct PieceSums {
  std::size_t range;
  double lost;
  double encoded;
  double decoded;
};

// One thread's sums of each piece, and its memory for encoding errors that the caller doesn't keep.
struct Found {
  std::vector<PieceSums> pieces;
  std::vector<float> scratch;
  bool finite = true;
};

// Adds up all pieces in order, whichever threads computed them.
double add_up(const std::vector<Found>& all, const RangeSums& into) {
  double total = 0.0;
  for (const Found& found : all) {
    for (const PieceSums& piece : found.pieces) {
      total += piece.lost;
      if (into.ranges == 0) continue;
      double* const sum = into.sums + piece.range;
      sum[0] += piece.lost;
      if (into.compares) sum[into.ranges] += piece.encoded, sum[2 * into.ranges] += piece.decoded;
    }
  }
  return total;
}

}  // namespace

Loss lose(const Target& target, const Payload& payload, float* x, float* lost, std::size_t n, bool adopts, float divisor,
          const RangeSums& sums, int threads) {
  const Ranges& ranges = *payload.format.ranges;
  const NormKernels& kernels = *target.norms;
  const char* const fault = ranges.find_fault(target, payload.data, payload.nbytes, n, payload.params, threads);
  if (fault != nullptr) return {fault, 0.0, false};
  const std::size_t tile = tile_of(ranges.granule(payload.params));
  const int parts = count_parts(n, threads);
  std::vector<Found> all(static_cast<std::size_t>(parts));
  for_each_tile(n, tile, parts, [&](int index) {
    Found& found = all[static_cast<std::size_t>(index)];
    if (lost == nullptr) found.scratch.resize(std::min(n, tile));
    return [&](std::size_t begin, std::size_t end) {
      float* const decoded = lost == nullptr ? found.scratch.data() : lost + begin;
      ranges.decode(target, payload.data, n, begin, end, payload.params, decoded, false);
      Pieces pieces(end - begin, sums.start + begin, sums.borders, sums.ranges);
      for (Piece piece{}; pieces.next(piece);) {
        float* const own = x + begin + piece.begin;
        float* const other = decoded + piece.begin;
        const std::size_t count = piece.end - piece.begin;
        PieceSums each{piece.range, 0.0, 0.0, 0.0};
        if (sums.compares) {
          each.encoded = kernels.look(own, own, count);
          each.decoded = kernels.look(other, other, count);
        }
        each.lost = adopts ? kernels.adopt(own, other, count) : kernels.subtract(own, other, count);
        found.pieces.push_back(each);
      }
      if (adopts) found.finite &= kernels.finish(x + begin, end - begin, divisor);
    };
  });
  bool finite = true;
  for (const Found& found : all) finite &= found.finite;
  return {nullptr, add_up(all, sums), finite};
}

const char* decode_finished(const Target& target, const Payload& payload, float* x, std::size_t n, float divisor,
                            bool& finite, int threads) {
  const Ranges* const ranges = payload.format.ranges;
  if (payload.format.finishing != nullptr) {
    return payload.format.finishing->decode(target, payload.data, payload.nbytes, x, n, payload.params, divisor, finite,
                                            threads);
  }
  if (ranges == nullptr) {
    const char* const fault =
        payload.format.decode(target, payload.data, payload.nbytes, x, n, payload.params, false, threads);
    if (fault == nullptr) finite = finish(target, x, n, divisor, threads);
    return fault;
  }
  const char* const fault = ranges->find_fault(target, payload.data, payload.nbytes, n, payload.params, threads);
  if (fault != nullptr) return fault;
  std::atomic<bool> all{true};
  for_each_tile(n, tile_of(ranges->granule(payload.params)), count_parts(n, threads), [&](int) {
    return [&](std::size_t begin, std::size_t end) {
      ranges->decode(target, payload.data, n, begin, end, payload.params, x + begin, false);
      if (!target.norms->finish(x + begin, end - begin, divisor)) all.store(false, std::memory_order_relaxed);
    };
  });
  finite = all.load(std::memory_order_relaxed);
  return nullptr;
}

bool relays(const Format& format) { return format.ranges != nullptr && format.ranges->encode != nullptr; }

const char* relay(const Target& target, const Relay& relay, float* x, std::size_t n, bool& finite, int threads) {
  const Payload& from = relay.received;
  const Ranges& ranges = *from.format.ranges;
  const char* const fault = ranges.find_fault(target, from.data, from.nbytes, n, from.params, threads);
  if (fault != nullptr) return fault;
  const std::size_t granule = std::lcm(ranges.granule(from.params), ranges.granule(relay.params));
  std::atomic<bool> all{true};
  for_each_tile(n, tile_of(granule), count_parts(n, threads), [&](int) {
    return [&](std::size_t begin, std::size_t end) {
      ranges.decode(target, from.data, n, begin, end, from.params, x + begin, true);
      ranges.encode(target, x + begin, n, begin, end, relay.params, relay.out);
      if (!relay.adopts) return;
      ranges.decode(target, relay.out, n, begin, end, from.params, x + begin, false);
      if (!target.norms->finish(x + begin, end - begin, relay.divisor)) all.store(false, std::memory_order_relaxed);
    };
  });
  finite = all.load(std::memory_order_relaxed);
  return nullptr;
}

bool finish(const Target& target, float* x, std::size_t n, float divisor, int threads) {
  std::atomic<bool> all{true};
  for_each_tile(n, kTile, count_parts(n, threads), [&](int) {
    return [&](std::size_t begin, std::size_t end) {
      if (!target.norms->finish(x + begin, end - begin, divisor)) all.store(false, std::memory_order_relaxed);
    };
  });
  return all.load(std::memory_order_relaxed);
}

}  // namespace gradwire
