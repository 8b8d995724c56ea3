// SPDX-License-Identifier: Apache-2.0
// What a naive backward rounds besides its inputs: dP, D, P and dS. verify/ asks for it to learn how far a naive
// computation strays where these cancel (dP - D of a row that sees one key; the sum of dS over keys, which is the
// gradient of a bias that keys share) and where P and dS are below the normal numbers of f16. Without such a request
// nothing is rounded.
#pragma once
#include <cmath>
#include <cstdint>

namespace attune {

struct NaiveRounding {
  double sums = 0;     // of dP and D, relative to the root of the sum of their squared terms
  double outs = 0;     // of a branch's output in D, relative likewise
  double scores = 0;   // of dS, relative to itself
  double least = 0;    // of P and dS, absolute
  uint64_t state = 0;

  double draw() {  // uniform in [-1, 1)
    state += 0x9E3779B97F4A7C15u;
    uint64_t x = state;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u, x = (x ^ x >> 27) * 0x94D049BB133111EBu, x ^= x >> 31;
    return double(int64_t(x)) * 0x1p-63;
  }
};
inline thread_local NaiveRounding naive_rounding{};

// terms(): the root of the sum's squared terms, up to a factor of about one.
template <class Terms>
double naive_sum(double sum, Terms terms) {
  NaiveRounding& by = naive_rounding;
  return by.sums != 0 ? sum + by.sums * terms() * by.draw() : sum;
}
template <class Terms>
double naive_out(double D, Terms terms) {
  NaiveRounding& by = naive_rounding;
  return by.outs != 0 ? D + by.outs * terms() * by.draw() : D;
}
inline double naive_score(double dS) {
  NaiveRounding& by = naive_rounding;
  return by.scores != 0 ? dS * (1 + by.scores * by.draw()) : dS;
}
inline double naive_operand(double x) {  // P or dS, as a matrix product takes it
  NaiveRounding& by = naive_rounding;
  return by.least != 0 ? x + by.least * by.draw() : x;
}

}  // namespace attune
