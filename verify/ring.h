// Attention over ranks against the golden result of the whole: a world is cut into shards, every rank runs its own in a
// thread, and what they give is joined again and judged like the result of one. A process of many (MPI) runs one rank
// of the same world and gathers.
#pragma once
#include "core/variant/ring.h"
#include "transport/communicator.h"
#include "verify/compare.h"

namespace attune {

// How a case is cut.
struct Cutting {
  Cut cut = Cut::ring;
  int ranks = 1;
};

// A case of the whole problem, dense or dilated, as the problem of one rank: what a Trial of it takes.
Status whole_case(const Case& dense, Case& out);
// The problem of every rank of so many. A refusal: the layout does not serve it.
Status shard_problem(const World& whole, const Cutting&, Problem& out);

struct RankRun {
  Status status{};      // of this rank
  Traffic traffic{};
  double seconds = 0;
};

// The shards of one rank: inputs cut from a world, outputs poisoned.
class Shard {
 public:
  Shard(const World& whole, const Problem&, const Shards&, int rank);
  Status run(const Device&, Communicator*);        // plans, runs, checks that nothing else was written
  void join(Outputs& whole) const;                 // rows to their tokens; gradients of sinks are added
  std::vector<unsigned char> packed() const;       // the outputs, as bytes
  void unpack(const std::vector<unsigned char>&);

 private:
  Problem problem_;
  Shards shards_;
  int rank_;
  std::list<Owned> owned_{};
  Args args_{};
  std::vector<Role> outputs_{};

  Owned& add(Role, DType, Extents);
  Status run_on_cpu(const Plan&, const Args&);
  Status run_on_gpu(const Plan&, const Args&);
};

// All ranks, each in a thread of its own. `each` says what became of every rank.
Outcome run_ranks(Trial&, const Cutting&, const Device&, std::vector<RankRun>& each, double seconds = kPatience);
// The same over transports of the caller's, one for each rank; they are destroyed.
Outcome run_over(Trial&, const Cutting&, const Device&, std::span<const Transport>, std::vector<RankRun>& each,
                 double seconds = kPatience);
// One rank of several processes that all do this. Rank 0 has the outcome; the others have only what went wrong there.
Outcome run_here(Trial&, const Cutting&, const Device&, Communicator&);

// Whole problems that decide whether a ring is right, and how they are cut.
std::vector<Case> ring_cases(bool quick);
std::span<const std::string_view> ring_lines();  // of their forwards; each has a backward too
std::vector<Cut> all_cuts();

}  // namespace attune
