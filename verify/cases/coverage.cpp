#include "verify/cases/coverage.h"

namespace attune {
namespace {

bool belongs(const Problem& p, const Topic& t, const Cell& c) {
  return p.pass == c.pass && p.dtype.q == c.dtype && p.keys == c.keys && t.has(p);
}

}  // namespace

std::vector<Cell> coverage(const Suite& suite, const std::vector<Attempt>& runs, const Backend& backend,
                           size_t place_index) {
  std::vector<Cell> cells;
  for (const Topic& t : topics())
    for (const Pass pass : {Pass::forward, Pass::backward})
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const KeySource keys : {KeySource::linear, KeySource::ragged, KeySource::paged}) {
          Cell c{t.word, pass, dtype, keys, 0, {}};
          for (const Attempt& r : runs)
            c.runs += r.backend == &backend && r.place_index == place_index && r.outcome.verdict != Verdict::empty &&
                      belongs(suite.cases[r.case_index].problem, t, c);
          // Includes refusals that only planning reveals: a library missing on this machine.
          Plan plan;
          const Problem p = plainest(t, pass, dtype, keys);
          if (!c.runs) c.refusal = plan_on(backend, p, suite.places[place_index].device, plan).message;
          cells.push_back(std::move(c));
        }
  return cells;
}

}  // namespace attune
