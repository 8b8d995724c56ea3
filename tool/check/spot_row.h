// SPDX-License-Identifier: Apache-2.0
// The expected value of a sampled row, summed in double, and its tolerance. Kernels round weights and their gradients
// to the dtype of the values, independently of each other, so these errors add in squares. Errors of f32 arithmetic and
// of rounding the output come on top. Rows are compared by L2 norm, so a single lucky element cannot pass.
#pragma once
#include <cmath>
#include <vector>

#include "core/args.h"
#include "verify/rows.h"

namespace attune {

inline constexpr double kArithmetic = 64 * 0x1p-24;  // error of f32 arithmetic, relative to the sum of magnitudes
inline constexpr double kRoundings = 4;              // allowed standard deviations, a generous number

// A sum of weighted rows, and the scale of its rounding error.
struct Sum {
  Row value, square, magnitude;
  explicit Sum(int dim) : value(size_t(dim)), square(size_t(dim)), magnitude(size_t(dim)) {}
  // The rounding error of `weight` is relative to `noise`.
  void add(double weight, double noise, const Row& x) {
    for (size_t d = 0; d < x.size(); ++d) {
      value[d] += weight * x[d];
      square[d] += noise * noise * x[d] * x[d];
      magnitude[d] += std::abs(noise * x[d]);
    }
  }
  // Error of a row divided by the tolerance; NaN if the row has a NaN. `more` is added to the tolerance.
  double judge(const Row& got, double rounding, double rounding_out, double more = 0) const {
    double error = 0, noise = 0, size = 0, sum = 0;
    for (size_t d = 0; d < got.size(); ++d) {
      error += (got[d] - value[d]) * (got[d] - value[d]);
      noise += square[d], size += value[d] * value[d], sum += magnitude[d] * magnitude[d];
    }
    const double allowed = kRoundings * rounding * std::sqrt(noise) + 2 * rounding_out * std::sqrt(size) +
                           kArithmetic * std::sqrt(sum) + more + 1e-30;
    return std::sqrt(error) / allowed;
  }
};

// The larger of two errors; NaN is the largest.
inline double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// Error of an lse divided by its tolerance.
inline double judge_lse(double got, double expected, double rounding) {
  if (got == expected) return 0;
  return std::abs(got - expected) / (kArithmetic * (4 + std::abs(expected)) + rounding);
}

// Rows of native sparse attention; see spot_nsa.cpp. `what` names the part of the row with the worst error.
Status can_draw_nsa(const Problem&);
bool has_chosen_blocks(const Problem&, const Args&);
double nsa_out_row(const Problem&, const Args&, int b, int h, int i, const char*& what);
double nsa_dq_row(const Problem&, const Args&, int b, int h, int i);
double nsa_key_row(const Problem&, const Args&, int b, int kv_head, int j, const char*& what);

}  // namespace attune
