// Attention over ranks as one thing to time: each rank is a thread of this process with a shard of its own, and a call
// is over when the last of them is done. The threads stay from call to call, so that starting them is not in the time.
// On a GPU the ranks share it, with a stream each: a call only enqueues, behind what the timer's stream has done, and
// that stream goes on when all of them are done. It says what the exchange costs, and nothing of several GPUs.
#pragma once
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "core/variant/ring.h"
#include "machine/cuda/copies.h"
#include "machine/cuda/runtime.h"
#include "plan/backend.h"
#include "tool/timing/device_timer.h"
#include "tool/subjects/workload.h"
#include "transport/communicator.h"

namespace attune {

bool is_ring(const Problem&);  // of several ranks
// What all ranks have to do together; of every other problem, itself.
Problem whole_problem(const Problem&);
// Whether it can be timed here, or a sentence that begins with "not built: ".
Status can_time_ring(const Problem&, const Device&, Mode);
// What one rank has of it: of a CPU its share of the threads, of a GPU all.
Device rank_device(const Device&, const Problem&);

class RingRun {
 public:
  // `plan` is of one rank, `whole` are inputs and outputs of all, which stay the caller's and lie on the host; of a GPU
  // `there` are those that it has, and `stream` is the one that is timed. Throws std::bad_alloc.
  RingRun(Plan plan, const Args& whole, const std::vector<Role>& outputs, Layout, const Args* there = nullptr,
          Stream stream = nullptr);
  ~RingRun();
  RingRun(const RingRun&) = delete;
  RingRun& operator=(const RingRun&) = delete;

  Status open();    // memory of a GPU, transports and threads
  Status cut();     // inputs from the whole, outputs poisoned
  bool run();       // all ranks once
  Status gather();  // outputs to the whole, once they are there
  Status status() const { return status_; }
  uint64_t sent() const;  // bytes, by all ranks in all calls
  size_t workspace_bytes() const { return plan_.workspace_bytes * ranks_.size(); }
  const Plan& plan() const { return plan_; }

 private:
  struct Rank {
    std::vector<Memory> memory{};  // of the shards, on the host
    Args args{}, here{};           // of the call, and the same on the host
    std::unique_ptr<Memory> workspace{};
    std::vector<cuda::Memory> on_gpu{};  // of the shards and, the last, the workspace
    cuda::OwnStream stream{};
    cuda::Mark end{};
    std::unique_ptr<Communicator> comm{};
    Status status{};
  };
  bool gpu() const { return plan_.device.kind == DeviceKind::cuda; }
  Status open_gpu();
  Status work(Rank&);
  void serve(Rank&);
  template <class F>
  void each_row(int rank, Role, F f) const;  // f(row of the whole, row of the rank, bytes)

  Plan plan_;
  Shards shards_;
  Args whole_;
  Stream stream_ = nullptr;
  cuda::Mark begun_{};  // where the timed stream was when a call began
  std::vector<Role> inputs_{}, outputs_{};  // those that are cut
  std::list<Rank> ranks_{};
  std::vector<std::thread> threads_{};
  Status status_{};

  std::mutex mutex_{};
  std::condition_variable begin_{}, end_{};
  uint64_t round_ = 0;
  size_t busy_ = 0;
  bool stop_ = false;
};

}  // namespace attune
