// SPDX-License-Identifier: Apache-2.0
// Arguments for the reference, small enough to check by hand: tensors of any dtype that start as poison (NaN, or -1 in
// integers), are set by value and read back as doubles.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "plan/backend.h"
#include "reference/definition.h"

namespace attune {

extern const Backend reference;

struct Sample {
  Problem problem{};
  Args args{};
  std::deque<std::vector<unsigned char>> memory{};

  Sample(Sample&&) = default;  // a copy would point into the original's memory
  explicit Sample(const std::string& line) {
    const Status s = parse(line, problem);
    EXPECT_TRUE(s.ok()) << s.message;
  }
  // q, k, v and out in the problem's shape, and lse; f64 throughout, so nothing is rounded.
  Sample& dense() {
    const Problem& p = problem;
    add(Role::q, {p.batch, p.len_q, p.heads_q, p.dim_qk});
    add(Role::k, {p.batch, p.len_k, p.heads_kv, p.dim_qk});
    add(Role::v, {p.batch, p.len_k, p.heads_kv, p.dim_v});
    return outputs();
  }
  Sample& outputs() {
    Extents e = args[Role::q].extent;
    e.dim = problem.dim_v;
    add(Role::out, e);
    e.dim = 1;
    add(Role::lse, e);
    return *this;
  }
  // Packed in the order batch, seq, head, dim.
  Sample& add(Role r, Extents e, DType dtype = DType::f64) {
    const int64_t seq = int64_t(e.head) * e.dim, batch = e.seq * seq;
    memory.emplace_back(size_t(e.batch * batch * size_of(dtype)) + 1, (unsigned char)(0xFF));
    args[r] = {.data = memory.back().data(), .dtype = dtype, .extent = e, .stride = {batch, seq, e.dim}};
    return *this;
  }
  template <class F>
  void each(Role r, F f) const {  // f(b, s, h, d)
    const Extents e = args[r].extent;
    for (int b = 0; b < e.batch; ++b)
      for (int s = 0; s < e.seq; ++s)
        for (int h = 0; h < e.head; ++h)
          for (int d = 0; d < e.dim; ++d) f(b, s, h, d);
  }
  Sample& set(Role r, const std::vector<double>& values) {
    EXPECT_EQ(values.size(), size(r));
    size_t n = 0;
    each(r, [&](int b, int s, int h, int d) { reference_detail::save(args[r], b, s, h, d, values[n++]); });
    return *this;
  }
  Sample& fill(Role r, double value) { return set(r, std::vector<double>(size(r), value)); }
  Sample& normal(Role r, unsigned seed, double width = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<double> draw(0, width);
    std::vector<double> values(size(r));
    for (double& x : values) x = draw(random);
    return set(r, values);
  }
  Sample& integers(Role r, Extents e, const std::vector<int64_t>& values, DType dtype = DType::i32) {
    add(r, e, dtype);
    size_t n = 0;
    each(r, [&](int b, int s, int h, int d) {
      const int64_t at = b * args[r].stride.batch + s * args[r].stride.seq + h * args[r].stride.head + d;
      if (dtype == DType::i32) static_cast<int32_t*>(args[r].data)[at] = int32_t(values[n++]);
      if (dtype == DType::i64) static_cast<int64_t*>(args[r].data)[at] = values[n++];
    });
    return *this;
  }
  size_t size(Role r) const {
    const Extents e = args[r].extent;
    return size_t(e.batch) * size_t(e.seq) * size_t(e.head) * size_t(e.dim);
  }
  double at(Role r, int b, int s, int h, int d = 0) const { return reference_detail::load(args[r], b, s, h, d); }
  std::vector<double> values(Role r) const {
    std::vector<double> all;
    each(r, [&](int b, int s, int h, int d) { all.push_back(at(r, b, s, h, d)); });
    return all;
  }
  Sample& run() {
    const Plan plan{.backend = &reference, .problem = problem};
    Status s = reference.supports(problem, Device{});
    if (s.ok()) s = reference.run(plan, args, {}, nullptr);
    EXPECT_TRUE(s.ok()) << s.message;
    return *this;
  }
};

}  // namespace attune
