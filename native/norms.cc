// Cuts a segment where ranges end, and long ranges into pieces, for the kernels in kernels/norms_*.
#include "gradwire/norms.h"

#include <algorithm>
#include <vector>

#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/norms.h"

namespace gradwire {

namespace {

struct Piece {
  std::size_t begin;
  std::size_t end;
  std::size_t range;
};

// Walks over the pieces of a segment in their order.
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

double pass_over(const NormKernels& kernels, Pass pass, float* x, float* y, std::size_t n) {
  switch (pass) {
    case Pass::add:
      return kernels.add(x, y, n);
    case Pass::subtract:
      return kernels.subtract(x, y, n);
    case Pass::adopt:
      return kernels.adopt(x, y, n);
    default:
      return kernels.look(x, y, n);
  }
}

}  // namespace

double sum_norms(const Target& target, Pass pass, float* x, float* y, std::size_t n, std::size_t start,
                 const std::int64_t* borders, std::size_t ranges, double* sums, int threads) {
  const NormKernels& kernels = *target.norms;
  Pieces pieces(n, start, borders, ranges);
  double total = 0.0;
  const auto count = [&](const Piece& piece, double sum) {
    total += sum;
    if (ranges > 0) sums[piece.range] += sum;
  };
  const auto sum_of = [&](const Piece& piece) {
    return pass_over(kernels, pass, x + piece.begin, y + piece.begin, piece.end - piece.begin);
  };
  const int parts = count_parts(n, threads);
  Piece piece{};
  if (parts == 1) {
    while (pieces.next(piece)) count(piece, sum_of(piece));
    return total;
  }
  std::vector<Piece> all;
  while (pieces.next(piece)) all.push_back(piece);
  std::vector<double> found(all.size());
  run_parts(parts, [&](int index) {
    const Part part = part_of(all.size(), parts, index, 1);
    for (std::size_t i = part.begin; i < part.end; ++i) found[i] = sum_of(all[i]);
  });
  for (std::size_t i = 0; i < all.size(); ++i) count(all[i], found[i]);
  return total;
}

}  // namespace gradwire
