// The pieces of a segment: it is cut at the ends of the bucket's ranges, and long ranges are cut further.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/norms.h"

namespace gradwire {

struct Piece {
  std::size_t begin;
  std::size_t end;
  std::size_t range;
};

// Walks over the pieces of a segment in order.
class Pieces {
 public:
  Pieces(std::size_t n, std::size_t start, const std::int64_t* borders, std::size_t ranges)
      : n_(n), start_(start), borders_(borders), ranges_(ranges) {
    if (ranges == 0) return;
    const auto* after = std::upper_bound(borders, borders + ranges, static_cast<std::int64_t>(start));
    range_ = static_cast<std::size_t>(after - borders) - 1;
  }

  bool next(Piece& piece) {
    if (at_ >= n_) return false;
    while (range_ + 1 < ranges_ && end_of(range_) <= at_) ++range_;
    const std::size_t last = ranges_ == 0 ? n_ : std::min(n_, end_of(range_));
    piece = {at_, std::min(last, at_ + kNormsPiece), range_};
    at_ = piece.end;
    return true;
  }

 private:
  std::size_t end_of(std::size_t range) const { return static_cast<std::size_t>(borders_[range + 1]) - start_; }

  std::size_t n_;
  std::size_t start_;
  const std::int64_t* borders_;
  std::size_t ranges_;
  std::size_t range_ = 0;
  std::size_t at_ = 0;
};

}  // namespace gradwire
