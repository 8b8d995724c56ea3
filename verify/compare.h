// One case against the golden reference. The golden result and its tolerance are made once a case; any number of
// backends and devices are then held against it, each into fresh poison.
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
  std::string why{};               // of a failure: a sentence
  bool by_rounding = false;        // of a failure: all that is wrong is that an error is over its tolerance
  std::string mistake{};           // of a failure: the usual mistake that explains it, name and sentence
  std::string unfit{};             // why the backend is not for these arguments; nothing was run
  std::vector<Figures> figures{};  // one an output

  double mae() const;  // the worst of all outputs
  double max() const;
  double relative_l2() const;
  double used() const;
};

// The plan of a given backend, as Planner makes it for one that is asked for by name. Takes the table and not a name,
// so that a test can judge a backend that is deliberately wrong.
Status plan_on(const Backend&, const Problem&, const Device&, Plan& out);

class Trial {
 public:
  explicit Trial(const Case&);
  // Makes the golden result. A refusal: the arguments do not fit, or the reference does not know the problem.
  Status prepare();
  // Plans, runs and judges. A refusal of the backend is a failure here, but for one of its `fits`: plan before. `alone`
  // is held while the backend runs, and not while its outputs are judged.
  Outcome run(const Backend&, const Device&, std::mutex* alone = nullptr);
  // Judges outputs that somebody else filled.
  Outcome judge(const Outputs&);
  // Elements that a run is compared in. None: the case proves nothing.
  size_t compared() const;

  World world;
  // Told right before a backend runs and right after, with `alone` held: for a watchdog.
  std::function<void(bool running)> watch{};

 private:
  Outputs golden_outputs_{};
  std::map<Role, Golden> golden_{};
  std::map<Role, std::vector<char>> wanted_{};  // elements that the golden run wrote
  uint64_t inputs_ = 0;
  uint32_t shakes_ = 0;

  Status shake();
  Outcome compare(const Outputs&) const;
};

// Whether the reference computes this problem, as a sentence where it does not.
Status golden_supports(const Problem&);

}  // namespace attune
