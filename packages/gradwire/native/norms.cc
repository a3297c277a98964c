// Passes over a segment, piece by piece, with the kernels in kernels/norms_*.
#include "gradwire/norms.h"

#include <vector>

#include "gradwire/parallel.h"
#include "gradwire/target.h"
#include "kernels/norms.h"
#include "pieces.h"

namespace gradwire {

namespace {

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
