// Every backend must agree with the reference on every case it says it supports, on every level of this CPU, and must
// have been tried on everything it says it supports. `attune parity` runs the same cases.
#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "machine/host.h"
#include "verify/coverage.h"

namespace attune {
namespace {

const Suite& suite() {
  static const Suite all = [] {
    Suite s{.cases = cases(), .backends = {}, .places = cpu_places(), .progress = {}};
    for (const Backend* b : backends())
      if (!b->only_by_name) s.backends.push_back(b);
    Place busy{"cpu", this_cpu(), 7};  // more threads than rows, heads or cores divide by: other splits, other tasks
    busy.device.units = busy.threads;
    s.places.push_back(busy);
    return s;
  }();
  return all;
}

const std::vector<Attempt>& runs() {
  static const std::vector<Attempt> all = suite().run();
  return all;
}

TEST(conformance, every_backend_agrees_with_the_reference) {
  std::map<std::string_view, std::pair<int, double>> by_backend;
  for (const Attempt& r : runs()) {
    EXPECT_NE(r.outcome.verdict, Verdict::fail) << command(suite(), r) << "\n  " << r.outcome.why;
    auto& [count, worst] = by_backend[r.backend->name];
    ++count, worst = std::max(worst, r.outcome.used());
  }
  for (const auto& [backend, figures] : by_backend)
    std::cout << join(backend, ": ", figures.first, " runs, worst ", figures.second, " of the tolerance\n");
}

TEST(conformance, one_device_alone_gives_six_hundred_runs) {
  size_t on_cpu = 0;
  for (const Attempt& r : runs()) on_cpu += r.place_index == 0;
  EXPECT_GE(on_cpu, 600u);
}

TEST(conformance, a_backend_that_supports_no_case_is_an_error) {
  for (const Backend* b : suite().backends) {
    bool claims = false;  // on some device, present or not: supports() is pure
    for (const std::string_view word : {"cpu", "cpu:scalar", "a100", "h200"}) {
      Device d;
      ASSERT_TRUE(device_named(word, d).ok());
      for (const Case& c : suite().cases) claims |= b->supports(c.problem, d).ok();
    }
    EXPECT_TRUE(claims) << b->name;
  }
}

TEST(conformance, what_a_backend_says_it_supports_was_tried) {
  for (const Backend* b : suite().backends)
    for (size_t place = 0; place < suite().places.size(); ++place)
      for (const Cell& c : coverage(suite(), runs(), *b, place))
        EXPECT_FALSE(c.empty()) << join(b->name, " on ", suite().places[place].word, ": ", c.topic, " ", name(c.pass),
                                        " ", name(c.dtype), " ", name(c.keys));
}

}  // namespace
}  // namespace attune
