// SPDX-License-Identifier: Apache-2.0
// The tolerance: one rule for every backend, dtype and output.
//
// A result may be as wrong as a naive computation in the same precision, times a small factor: Dao's rule (the tests of
// FlashAttention). The naive computation is the golden one on *shaken* inputs (World::shaken). Values that it keeps in
// a low-precision dtype (P in a forward, P and dS in a backward) are modelled by moving d_out and d_lse, and in a
// forward the values, by up to one rounding of that dtype. Where the golden result cancels whatever the inputs, dP, D
// and dS themselves are rounded (reference/naive.h). Its f32 arithmetic is modelled by moving q and k by a few
// roundings of f32. This needs no second implementation that could share a kernel's mistakes, and it covers every
// option and both passes. If f32 may be multiplied as tf32, inputs move by one rounding of tf32, 2^-11. tf32x3 is held
// to the rule of f32: two tf32 numbers keep 22 of its 24 bits, which is within the few roundings allowed.
//
//   max error   <=  3 * naive max error   +  floor,   floor = 2 roundings of the output's dtype at its largest value
//   mean error  <=  3 * naive mean error  +  floor,   floor = 2 roundings of the output's dtype at its mean value
//                                            both plus 8 + sqrt(n) roundings of f32: its own, summing n terms
// The log-sum-exp of low-precision values may also be wrong by a sixteenth of a rounding of P: exp2 need not be more
// accurate than the P it produces.
//
// Verdicts: PASS if the mean absolute error is also at most 5e-5; PASS-AT-FLOOR if it is above, but within the rule
// (for f16 and bf16 even an exact kernel can be); FAIL otherwise, and for NaN, unwritten or foreign memory. A run that
// would be PASS is EMPTY if a backend that sees no key would pass too (Trial::compares).
//
// Inputs are N(0, 1). If a case scales its values, errors are in units of the golden output's size. This size is its
// root mean square or, if that is small because large terms cancel, the size of those terms, to which naive errors are
// relative. A relative L2 error is always relative to the same size.
#pragma once
#include <string>
#include <vector>

#include "core/number.h"

namespace attune {

inline constexpr double kGate = 5e-5;  // limit of the mean absolute error

// `empty`: nothing was compared, because no row of the case sees a key; never a pass.
enum class Verdict : int32_t { pass, pass_at_floor, empty, fail };
inline constexpr int kVerdicts = 4;
std::string name(Verdict);

// The golden values of an output, and how far a naive computation deviates from them.
struct Golden {
  std::vector<double> values{};
  double naive_max = 0, naive_mean = 0;  // worst of the perturbations so far

  void shake(const std::vector<double>& naive);
};

// How far values deviate, and how far they may.
struct Judged {
  Verdict verdict = Verdict::pass;
  double mae = 0, max = 0, relative_l2 = 0;  // in the units described above
  double used = 0;                           // fraction of the tolerance; above 1 is a failure
  int64_t worst = -1;                        // index of the element
};

struct Yardstick {
  DType dtype = DType::f32;     // dtype of the output
  bool scaled = false;          // the case scales its values
  double terms = 1;             // number of terms summed into one element
  double shake = 0;             // relative perturbation of the inputs for the naive computation; 0: none
  DType weights = DType::none;  // log-sum-exp: the dtype that keeps P
};

// Equal elements, including infinities, have no error; an element that is not finite on one side only fails.
Judged judge(const Golden&, const std::vector<double>& got, const Yardstick&);

}  // namespace attune
