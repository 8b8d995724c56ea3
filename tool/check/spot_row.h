// What a drawn row should be, summed in double, and how far from it a kernel that rounds well may be. Weights (and
// their gradients) are kept in the dtype of the values, independently of each other, so their errors add in squares;
// f32 arithmetic and the output's rounding come on top. The L2 norm of a row is compared, which no lucky element can
// satisfy.
#pragma once
#include <cmath>
#include <vector>

#include "core/args.h"
#include "verify/rows.h"

namespace attune {

inline constexpr double kArithmetic = 64 * 0x1p-24;  // of f32, relative to the sum of magnitudes
inline constexpr double kRoundings = 4;              // this many standard deviations, generously

// A sum of weighted rows, and what its rounding may amount to.
struct Sum {
  Row value, square, magnitude;
  explicit Sum(int dim) : value(size_t(dim)), square(size_t(dim)), magnitude(size_t(dim)) {}
  // `noise`: the size that the weight's rounding is relative to.
  void add(double weight, double noise, const Row& x) {
    for (size_t d = 0; d < x.size(); ++d) {
      value[d] += weight * x[d];
      square[d] += noise * noise * x[d] * x[d];
      magnitude[d] += std::abs(noise * x[d]);
    }
  }
  // The error of a row as a share of what is allowed; NaN where the row has one. `more` is allowed on top.
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

// The larger of two errors; a NaN is larger than all.
inline double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// The error of an lse, likewise.
inline double judge_lse(double got, double expected, double rounding) {
  if (got == expected) return 0;
  return std::abs(got - expected) / (kArithmetic * (4 + std::abs(expected)) + rounding);
}

// Rows of the whole of native sparse attention; spot_nsa.cpp. `what` says what of a row was wrong.
Status can_draw_nsa(const Problem&);
bool has_chosen_blocks(const Problem&, const Args&);
double nsa_out_row(const Problem&, const Args&, int b, int h, int i, const char*& what);
double nsa_dq_row(const Problem&, const Args&, int b, int h, int i);
double nsa_key_row(const Problem&, const Args&, int b, int kv_head, int j, const char*& what);

}  // namespace attune
