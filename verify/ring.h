// SPDX-License-Identifier: Apache-2.0
// Attention over ranks, compared with the golden result of the whole: a world is divided into shards, every rank runs
// its own in a thread, and their results are joined and judged like a single one. With several processes (MPI), each
// runs one rank of the same world and gathers.
#pragma once
#include "core/variant/ring.h"
#include "transport/communicator.h"
#include "verify/compare.h"

namespace attune {

// How a case is divided.
struct Cutting {
  Cut cut = Cut::ring;
  int ranks = 1;
};

// A case of the whole problem, dense or dilated, as a single-rank problem for a Trial.
Status whole_case(const Case& dense, Case& out);
// The problem of each rank. Refuses if the layout does not support it.
Status shard_problem(const World& whole, const Cutting&, Problem& out);

struct RankRun {
  Status status{};      // result of this rank
  Traffic traffic{};
  double seconds = 0;
};

// The shards of one rank: inputs cut from a world, outputs poisoned.
class Shard {
 public:
  Shard(const World& whole, const Problem&, const Shards&, int rank);
  Status run(const Device&, Communicator*);        // plans, runs, checks that nothing else was written
  void join(Outputs& whole) const;                 // copies rows to their tokens; adds gradients of sinks
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

// Runs all ranks, each in its own thread. `each` holds the result of every rank.
Outcome run_ranks(Trial&, const Cutting&, const Device&, std::vector<RankRun>& each, double seconds = kPatience);
// The same over the caller's transports, one per rank; destroys them.
Outcome run_over(Trial&, const Cutting&, const Device&, std::span<const Transport>, std::vector<RankRun>& each,
                 double seconds = kPatience);
// Runs one rank in each of several processes. Rank 0 has the outcome; the others have only their errors.
Outcome run_here(Trial&, const Cutting&, const Device&, Communicator&);

// Whole problems that define the correctness of a ring, and how they are divided.
std::vector<Case> ring_cases(bool quick);
std::span<const std::string_view> ring_lines();  // forwards only; each has a backward too
std::vector<Cut> all_cuts();

}  // namespace attune
