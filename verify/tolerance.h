// What is close enough: one rule, for every backend, dtype and output.
//
// A result may be as wrong as a naive computation in the same precision is, a few times over, and no more: Dao's rule
// (flash-attention's tests). The naive computation is the golden one on *shaken* inputs (World::shaken): what it keeps
// in the dtype of the values (P in a forward, P and dS in a backward) is as good as the values, d_out and d_lse moved
// by up to one rounding of that dtype, and its f32 arithmetic as good as q and k moved by a few roundings of f32. It
// needs no second implementation that could share a kernel's mistakes, and serves every option and both passes.
// Where f32 may be multiplied as tf32, its arithmetic is as good as inputs moved by one rounding of tf32, 2^-11. With
// tf32x3 it is held to the rule of f32: two tf32 keep 22 of its 24 bits, which is within the few roundings allowed.
//
//   max error   <=  3 * naive max error   +  floor,   floor = 2 roundings of the output's dtype at its largest value
//   mean error  <=  3 * naive mean error  +  floor,   floor = 2 roundings of the output's dtype at its mean value
//                                            both plus 8 + sqrt(n) roundings of f32: its own, summing n terms
// A log-sum-exp of low-precision values may also be wrong by a sixteenth of a rounding of P: exp2 need not be better
// than the P it is for.
// Verdicts: PASS when also the mean absolute error is at most 5e-5; PASS-AT-FLOOR when it is above, which for f16 and
// bf16 even an exact kernel can be, but within the rule; FAIL otherwise, and for NaN, unwritten or foreign memory.
// Inputs are N(0, 1). Where a case scales its values, errors are in units of the golden output's size: its root mean
// square or, where that is small because large terms cancel, the size of those terms, which is what naive errors are
// relative to. A relative L2 error is relative to the same size always.
#pragma once
#include <string>
#include <vector>

#include "core/number.h"

namespace attune {

inline constexpr double kGate = 5e-5;  // of the mean absolute error

enum class Verdict : int32_t { pass, pass_at_floor, fail };
std::string name(Verdict);

// The golden values of an output and how far a naive computation strays from them.
struct Golden {
  std::vector<double> values{};
  double naive_max = 0, naive_mean = 0;  // the worst of the shakes so far

  void shake(const std::vector<double>& naive);
};

// How far values strayed, and how far they may.
struct Judged {
  Verdict verdict = Verdict::pass;
  double mae = 0, max = 0, relative_l2 = 0;  // in the units said above
  double used = 0;                           // of the tolerance; above 1 is a failure
  int64_t worst = -1;                        // which element
};

struct Yardstick {
  DType dtype = DType::f32;     // of the output
  bool scaled = false;          // the case scales its values
  double terms = 1;             // how many are summed to make one element
  double shake = 0;             // how far inputs were moved, relatively, for the naive computation; 0: they were not
  DType weights = DType::none;  // of a log-sum-exp: what P is kept in
};

// Elements that are equal, infinities among them, have no error; one that is not finite on one side only fails.
Judged judge(const Golden&, const std::vector<double>& got, const Yardstick&);

}  // namespace attune
