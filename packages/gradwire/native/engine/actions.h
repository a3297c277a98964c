// A rank's schedule as rows of numbers, and values derived from these rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace gradwire::engine {

// The operations of gradwire/collectives/frame_order.py, in the same order.
enum class Do : std::int64_t { send_partial, publish, forward, add, store };

// A rank's operation on one frame, as a row of 64-bit integers.
struct Action {
  Do what;
  std::int64_t peer;
  std::int64_t start;
  std::int64_t stop;
  std::int64_t keep;
  std::int64_t step;
  std::int64_t place;
  std::int64_t segment;  // the segment's index among the distinct segments
  std::int64_t part;

  bool receives() const { return what == Do::add || what == Do::store; }
  bool encodes() const { return what == Do::send_partial || what == Do::publish; }
  std::size_t count() const { return static_cast<std::size_t>(stop - start); }
};
constexpr std::size_t kRowLength = 9;
static_assert(sizeof(Action) == kRowLength * sizeof(std::int64_t));

using Order = std::pair<std::int64_t, std::int64_t>;
constexpr Order kLast{std::numeric_limits<std::int64_t>::max(), 0};

inline Order order_of(const Action& action) { return {action.step, action.place}; }

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

// Returns, for each action, the next action on the same segment if that action encodes the segment, else kNone.
inline std::vector<std::size_t> next_encodings(const Action* actions, std::size_t count, std::size_t segments) {
  std::vector<std::size_t> found(count, kNone);
  std::vector<std::size_t> next(segments, kNone);
  for (std::size_t i = count; i-- > 0;) {
    std::size_t& own = next[static_cast<std::size_t>(actions[i].segment)];
    found[i] = own;
    own = actions[i].encodes() ? i : kNone;
  }
  return found;
}

}  // namespace gradwire::engine
