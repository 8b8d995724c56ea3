// SPDX-License-Identifier: Apache-2.0
// Attention over ranks as a subject. Each rank is a thread of this process with its own shard, and a call ends when the
// last rank is done. The threads persist between calls, so starting them is not timed. On a GPU the ranks share the
// device with one stream each: a call only enqueues, after the timer's stream, which continues when all ranks are done.
// The time shows the cost of the exchange, not how several GPUs scale.
#pragma once
#include <list>
#include <optional>

#include "core/variant/ring.h"
#include "machine/cuda/copies.h"
#include "machine/cuda/runtime.h"
#include "plan/backend.h"
#include "tool/timing/device_timer.h"
#include "tool/subjects/team.h"
#include "tool/subjects/workload.h"
#include "transport/communicator.h"

namespace attune {

bool is_ring(const Problem&);  // true for several ranks
// The problem of all ranks together; any other problem is returned unchanged.
Problem whole_problem(const Problem&);
// Fails if it cannot be timed here: LeftOut::not_built.
Status can_time_ring(const Problem&, const Device&, Mode);
// The device as one rank sees it: its share of a CPU's threads, or the whole GPU.
Device rank_device(const Device&, const Problem&);

class RingRun {
 public:
  // `plan` is for one rank. `whole` holds the inputs and outputs of all ranks on the host and belongs to the caller. On
  // a GPU, `there` holds its tensors and `stream` is the timed stream. Throws std::bad_alloc.
  RingRun(Plan plan, const Args& whole, const std::vector<Role>& outputs, Layout, const Args* there = nullptr,
          Stream stream = nullptr);
  RingRun(const RingRun&) = delete;
  RingRun& operator=(const RingRun&) = delete;

  Status open();    // allocates GPU memory, starts transports and threads
  Status cut();     // shards the inputs and poisons the outputs
  bool run();       // runs all ranks once
  Status gather();  // copies the shards of the outputs into the whole
  Status status() const { return status_; }
  uint64_t sent() const;  // bytes sent by all ranks in all calls
  size_t workspace_bytes() const { return plan_.workspace_bytes * ranks_.size(); }
  const Plan& plan() const { return plan_; }

 private:
  struct Rank {
    std::vector<Memory> memory{};        // shards on the host
    Args args{}, here{};                 // arguments of the call, and the same on the host
    std::unique_ptr<Memory> workspace{};
    std::vector<cuda::Memory> on_gpu{};  // shards and, last, the workspace
    cuda::OwnStream stream{};
    cuda::Mark end{};
    std::unique_ptr<Communicator> comm{};
  };
  bool gpu() const { return plan_.device.kind == DeviceKind::cuda; }
  Status open_gpu();
  Status work(Rank&);
  template <class F>
  void each_row(int rank, Role, F f) const;  // f(row of the whole, row of the rank, bytes)

  Plan plan_;
  Shards shards_;
  Args whole_;
  Stream stream_ = nullptr;
  cuda::Mark begun_{};                      // position of the timed stream at the beginning of a call
  std::vector<Role> inputs_{}, outputs_{};  // roles that are sharded
  std::list<Rank> ranks_{};
  Status status_{};
  std::optional<Team> team_{};              // ends before what its threads use
};

}  // namespace attune
