// SPDX-License-Identifier: Apache-2.0
// Compares one case with the golden reference. The golden result and its tolerance are computed once per case. Any
// number of backends and devices are then compared with it, each into freshly poisoned outputs.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "verify/cases/cases.h"
#include "verify/tolerance.h"

namespace attune {

struct Figures { Role role; Judged judged; };

struct Outcome {
  Verdict verdict = Verdict::pass;
  std::string why{};               // for a failure: a sentence
  bool by_rounding = false;        // for a failure: the only fault is an error above its tolerance
  std::string mistake{};           // for a failure: the common mistake that explains it, name and sentence
  std::string unfit{};             // why the backend does not fit these arguments; nothing was run
  std::vector<Figures> figures{};  // one per output

  double mae() const;  // worst over all outputs
  double max() const;
  double relative_l2() const;
  double used() const;
};

// Plans a given backend, as Planner does for one selected by name. Takes the table and not a name, so a test can judge
// a deliberately wrong backend.
Status plan_on(const Backend&, const Problem&, const Device&, Plan& out);

class Trial {
 public:
  explicit Trial(const Case&);
  // Computes the golden result. Refuses if the arguments do not fit, or if the reference does not support the problem.
  // If no row sees a key for lengths or lists that are drawn, draws again.
  Status prepare();
  // Plans, runs and judges. A refusal by the backend is a failure, except one by `fits`, so plan first. Holds `alone`
  // while the backend runs, but not while its outputs are judged.
  Outcome run(const Backend&, const Device&, std::mutex* alone = nullptr);
  // Judges outputs that were filled elsewhere, those of `roles`: a peer writes no lse.
  Outcome judge(const Outputs&);
  // Whether a run of this case is compared with anything: a backend that writes only what rows without keys have (0, or
  // the previous contents with accumulate) would fail. For a case that is meant to be empty: whether it has such rows.
  bool compares() const { return compares_; }

  World world;
  // Called right before and right after a backend runs, with `alone` held: for a watchdog.
  std::function<void(bool running)> watch{};

 private:
  Outputs golden_outputs_{};
  std::map<Role, Golden> golden_{};
  std::map<Role, std::vector<char>> wanted_{};  // elements that the golden run wrote
  uint64_t inputs_ = 0;
  uint32_t shakes_ = 0;
  bool compares_ = false;

  Status draw();
  Status shake();
  bool shows_keys() const;
  size_t elements() const;
  Yardstick yardstick(Role, const Tensor& out) const;
  Outcome compare(const Outputs&) const;
};

// Whether the reference supports this problem; if not, a sentence.
Status golden_supports(const Problem&);

}  // namespace attune
