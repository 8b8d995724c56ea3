// SPDX-License-Identifier: Apache-2.0
// The memory pool with real streams, which machine/pool_test.cpp only models. Every buffer is filled on its stream and
// read back before it is freed, so a buffer that was reused too early holds foreign bytes. Passes with
// ATTUNE_POOL=driver, the default, and with ATTUNE_POOL=attune.
#include "machine/cuda/pool.h"

#include <algorithm>
#include <random>
#include <thread>

#include "attune/attune.h"
#include "tests/cuda/gpu.h"

namespace attune {
namespace {

constexpr size_t kMiB = size_t(1) << 20;

class GpuMemory : public OnGpu {
 protected:
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(cuda::trim(0, 0).message, "");
  }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.get()); }
  static cuda::PoolState state() {
    cuda::PoolState s;
    EXPECT_EQ(cuda::pool_state(0, s).message, "");
    return s;
  }
};

// A buffer must keep its fill value until it is freed; it is copied to the host in stream order.
struct Checks {
  struct Copy { unsigned char* host; size_t bytes; unsigned char tag; };
  std::vector<Copy> copies{};
  unsigned char* pinned = nullptr;
  size_t used = 0;
  static constexpr size_t kRoom = 8 * kMiB;

  Checks() { EXPECT_EQ(cudaMallocHost(&pinned, kRoom), cudaSuccess); }
  ~Checks() { (void)cudaFreeHost(pinned); }
  bool room(size_t bytes) const { return used + bytes <= kRoom; }
  bool last_words(const void* gpu, size_t bytes, unsigned char tag, cudaStream_t s) {
    copies.push_back({pinned + used, bytes, tag});
    used += bytes;
    return cudaMemcpyAsync(copies.back().host, gpu, bytes, cudaMemcpyDeviceToHost, s) == cudaSuccess;
  }
  int wrong() {  // after a synchronization
    int n = 0;
    for (const Copy& c : copies)
      n += std::any_of(c.host, c.host + c.bytes, [&](unsigned char byte) { return byte != c.tag; });
    copies.clear(), used = 0;
    return n;
  }
};

struct Buffer {
  void* data;
  size_t bytes;
  unsigned char tag;
  size_t on;  // index of the stream
};

// Allocates random buffers on these streams; returns 0 if all of them kept their bytes to the end.
int churn(const std::vector<cudaStream_t>& streams, unsigned seed, int steps) {
  if (cudaSetDevice(0) != cudaSuccess) return -1;
  std::mt19937 random(seed);
  std::vector<Buffer> live;
  Checks checks;
  int wrong = 0;
  const auto settle = [&] {
    for (const cudaStream_t s : streams) wrong += cudaStreamSynchronize(s) != cudaSuccess;
    wrong += checks.wrong();
  };
  const auto release = [&](const Buffer& b) {
    if (!checks.room(b.bytes)) settle();
    wrong += !checks.last_words(b.data, b.bytes, b.tag, streams[b.on]);
    wrong += !cuda::free(0, b.data, streams[b.on]).ok();
  };
  for (int step = 0; step < steps; ++step) {
    if (live.size() < 8 && random() % 2) {
      Buffer b{nullptr, 1 + random() % (size_t(1) << (10 + random() % 11)), static_cast<unsigned char>(random()),
               random() % streams.size()};
      wrong += !cuda::allocate(0, b.bytes, streams[b.on], b.data).ok();
      // Filled twice, so that a concurrent writer has more time to show.
      for (int n = 0; n < 2; ++n) wrong += cudaMemsetAsync(b.data, b.tag, b.bytes, streams[b.on]) != cudaSuccess;
      live.push_back(b);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      release(live.back());
      live.pop_back();
    }
  }
  for (const Buffer& b : live) release(b);
  settle();
  return wrong;
}

TEST_F(GpuMemory, no_buffer_loses_its_bytes_on_one_stream) { EXPECT_EQ(churn({stream()}, 1, 4000), 0); }

TEST_F(GpuMemory, no_buffer_loses_its_bytes_on_five_streams) {
  std::vector<cudaStream_t> streams(5);
  for (cudaStream_t& s : streams) ASSERT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  streams.push_back(nullptr);  // the default stream
  streams.push_back(cudaStreamPerThread);
  EXPECT_EQ(churn(streams, 2, 6000), 0);
  EXPECT_EQ(state().counts.hits > 0, state().keeps);
  for (int n = 0; n < 5; ++n) EXPECT_EQ(cudaStreamDestroy(streams[size_t(n)]), cudaSuccess);
}

TEST_F(GpuMemory, no_buffer_loses_its_bytes_among_threads) {
  std::vector<cudaStream_t> streams(4);
  for (cudaStream_t& s : streams) ASSERT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  streams.push_back(cudaStreamPerThread);  // a different stream in every thread
  std::vector<int> wrong(8);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) threads.emplace_back([&, t] { wrong[t] = churn(streams, t + 10, 2000); });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, std::vector<int>(8));
  EXPECT_EQ(state().counts.live_buffers, 0u);
  for (int n = 0; n < 4; ++n) EXPECT_EQ(cudaStreamDestroy(streams[size_t(n)]), cudaSuccess);
}

TEST_F(GpuMemory, streams_that_come_and_go_leave_no_heap_behind) {
  Checks checks;
  int wrong = 0;
  for (int n = 0; n < 200; ++n) {
    cudaStream_t s = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    void* data = nullptr;
    ASSERT_EQ(cuda::allocate(0, 4 * kMiB, s, data).message, "");
    wrong += cudaMemsetAsync(data, n, 4 * kMiB, s) != cudaSuccess;
    wrong += !checks.last_words(static_cast<char*>(data) + 4 * kMiB - 100, 100, static_cast<unsigned char>(n), s);
    ASSERT_EQ(cuda::free(0, data, s).message, "");
    ASSERT_EQ(cudaStreamDestroy(s), cudaSuccess);  // its work may still be running
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(wrong + checks.wrong(), 0);
  EXPECT_LE(state().counts.free_bytes, 4 * kMiB + PoolPolicy{}.slack);
}

TEST_F(GpuMemory, trim_gives_everything_back_to_the_system) {
  void* data = nullptr;
  ASSERT_EQ(cuda::allocate(0, 300 * kMiB, stream(), data).message, "");
  EXPECT_GE(state().counts.held_bytes, 300 * kMiB);
  ASSERT_EQ(cuda::free(0, data, stream()).message, "");
  ASSERT_EQ(cuda::trim(0, 0).message, "");
  EXPECT_EQ(state().counts.held_bytes, 0u);
  EXPECT_EQ(state().counts.free_blocks, 0u);
}

TEST_F(GpuMemory, out_of_memory_is_a_sentence_and_leaves_everything_usable) {
  size_t all = 0, some = 0;
  ASSERT_EQ(cudaMemGetInfo(&some, &all), cudaSuccess);
  void *first = nullptr, *second = &all;
  ASSERT_EQ(cuda::allocate(0, some / 8 * 5, stream(), first).message, "");
  const std::string message = cuda::allocate(0, some / 8 * 5, stream(), second).message;
  const std::string begin = join("memory: ", some / 8 * 5, " bytes could not be allocated: cudaMallocFromPoolAsync: ");
  EXPECT_TRUE(message.starts_with(begin)) << message;
  EXPECT_TRUE(message.ends_with(", on cuda:0")) << message;
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(churn({stream()}, 3, 200), 0);
  ASSERT_EQ(cuda::free(0, first, stream()).message, "");
  // The driver now holds that much: a larger buffer fits only if it is returned first.
  ASSERT_EQ(cuda::allocate(0, some / 8 * 6, stream(), second).message, "");
  ASSERT_EQ(cuda::free(0, second, stream()).message, "");
}

TEST_F(GpuMemory, what_one_stream_freed_gives_way_to_a_larger_buffer_of_another) {
  size_t all = 0, some = 0;
  ASSERT_EQ(cudaMemGetInfo(&some, &all), cudaSuccess);
  void* data = nullptr;
  ASSERT_EQ(cuda::allocate(0, some / 8 * 5, stream(), data).message, "");
  ASSERT_EQ(cuda::free(0, data, stream()).message, "");
  cuda::OwnStream other;
  ASSERT_EQ(other.open(0).message, "");
  ASSERT_EQ(cuda::allocate(0, some / 8 * 6, other.get(), data).message, "");
  ASSERT_EQ(cuda::free(0, data, other.get()).message, "");
}

// A problem that needs a workspace, through the C interface.
struct Decode {
  static constexpr const char* kLine = "forward bf16 b2 h8/2 q1 k4096 d128 full";
  static constexpr int64_t kQuery[] = {2, 1, 8, 128}, kKeys[] = {2, 4096, 2, 128};
  attune_problem problem{};
  attune_tensor tensor[4]{};
  attune_args args{};
  cuda::Memory memory[4], scratch;
  size_t workspace = 0;

  Decode() {
    problem.size = sizeof problem, args.size = sizeof args;
    EXPECT_EQ(attune_problem_parse(kLine, &problem), 0) << attune_last_error();
    EXPECT_EQ(attune_workspace(&problem, "cuda:0", &workspace), 0) << attune_last_error();
    EXPECT_GT(workspace, 0u) << "the problem is to need one";
    EXPECT_EQ(scratch.allocate(0, workspace).message, "");
    std::mt19937 random(5);
    for (int r = ATTUNE_Q; r <= ATTUNE_OUT; ++r) {
      const bool keys = r == ATTUNE_K || r == ATTUNE_V;
      std::vector<uint16_t> values(size_t(keys ? 2 * 4096 * 2 * 128 : 2 * 8 * 128));
      for (uint16_t& v : values) v = uint16_t(0x3c00 + random() % 0x380 + (random() % 2 << 15));  // 2^-7 ... 1
      EXPECT_EQ(memory[r].allocate(0, values.size() * 2).message, "");
      EXPECT_EQ(cuda::copy_to(memory[r].data(), values.data(), values.size() * 2, nullptr).message, "");
      attune_tensor& t = tensor[r];
      t.data = memory[r].data(), t.device.type = 2, t.ndim = 4, t.axes = "bshd";
      t.dtype.code = 4, t.dtype.bits = 16, t.dtype.lanes = 1;
      t.shape = keys ? kKeys : kQuery;
      args.role[r] = &t;
    }
  }
  void forget(void* stream) {
    EXPECT_EQ(cudaMemsetAsync(memory[ATTUNE_OUT].data(), 0xff, memory[ATTUNE_OUT].bytes(),
                              static_cast<cudaStream_t>(stream)), cudaSuccess);
  }
  Written out(void* stream) const {
    Written all(memory[ATTUNE_OUT].bytes());
    EXPECT_EQ(cuda::copy_from(all.data(), memory[ATTUNE_OUT].data(), all.size(), stream).message, "");
    return all;
  }
  Written expected(void* stream) {
    attune_args own = args;
    own.workspace = scratch.data(), own.workspace_bytes = scratch.bytes();
    EXPECT_EQ(attune_call(&problem, &own, stream), 0) << attune_last_error();
    return out(stream);
  }
};

TEST_F(GpuMemory, a_call_without_a_workspace_borrows_the_plans_bytes) {
  Decode d;
  const Written expected = d.expected(stream());
  ASSERT_EQ(cuda::reset_marks(0).message, "");
  const cuda::PoolState before = state();
  for (int n = 0; n < 5; ++n) {
    d.forget(stream());
    ASSERT_EQ(attune_call(&d.problem, &d.args, stream()), 0) << attune_last_error();
    EXPECT_EQ(d.out(stream()), expected);
  }
  const cuda::PoolState after = state();
  EXPECT_EQ(after.counts.high_bytes, d.workspace);
  EXPECT_EQ(after.counts.live_buffers, 0u);
  EXPECT_EQ(after.counts.hits + after.counts.misses, before.counts.hits + before.counts.misses + 5);
  attune_plan* plan = nullptr;
  ASSERT_EQ(attune_plan_create(&d.problem, "cuda:0", nullptr, &plan), 0) << attune_last_error();
  d.forget(stream());
  EXPECT_EQ(attune_plan_run(plan, &d.args, stream()), 0) << attune_last_error();
  EXPECT_EQ(d.out(stream()), expected);
  attune_plan_destroy(plan);
}

TEST_F(GpuMemory, a_call_that_finds_no_workspace_names_its_problem_and_the_next_one_is_served) {
  Decode d;
  const Written expected = d.expected(stream());
  ASSERT_EQ(cuda::trim(0, 0).message, "");
  {
    std::vector<cuda::Memory> full;  // all remaining memory, down to less than the driver's allocation granularity
    size_t some = 0, all = 0;
    ASSERT_EQ(cudaMemGetInfo(&some, &all), cudaSuccess);
    while (some >= kMiB) {
      cuda::Memory more;
      if (more.allocate(0, some).ok()) full.push_back(std::move(more));
      else some /= 2;
    }
    EXPECT_EQ(attune_call(&d.problem, &d.args, stream()), 1);
    const std::string said = attune_last_error();
    EXPECT_TRUE(said.starts_with(join("workspace: memory: ", d.workspace, " bytes could not be allocated: "))) << said;
    EXPECT_TRUE(said.ends_with(join(", on cuda:0, in: ", Decode::kLine))) << said;
  }
  d.forget(stream());
  EXPECT_EQ(attune_call(&d.problem, &d.args, stream()), 0) << attune_last_error();
  EXPECT_EQ(d.out(stream()), expected);
}

TEST_F(GpuMemory, a_captured_call_takes_its_workspace_into_the_graph) {
  Decode d;
  const Written expected = d.expected(stream());
  const cuda::PoolState before = state();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(attune_call(&d.problem, &d.args, stream()), 0) << attune_last_error();
  EXPECT_EQ(attune_call(&d.problem, &d.args, stream()), 0) << attune_last_error();
  ASSERT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  EXPECT_EQ(state().graph_buffers, before.graph_buffers + 2);
  EXPECT_EQ(state().counts.live_buffers, before.counts.live_buffers);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int n = 0; n < 3; ++n) {
    d.forget(stream());
    ASSERT_EQ(cudaGraphLaunch(exec, stream()), cudaSuccess);
    EXPECT_EQ(d.out(stream()), expected);
    EXPECT_EQ(churn({stream()}, unsigned(n), 200), 0);  // the pool does not affect the graph
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(GpuMemory, a_buffer_inside_a_capture_is_refused_and_the_capture_goes_on) {
  void *outside = nullptr, *inside = &outside;
  ASSERT_EQ(cuda::allocate(0, kMiB, stream(), outside).message, "");
  cuda::OwnStream other;
  ASSERT_EQ(other.open(0).message, "");
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal), cudaSuccess);
  const char* why = "memory: the stream is being captured: a graph would use its address again; allocate and free "
                    "outside of the capture";
  EXPECT_EQ(cuda::allocate(0, kMiB, stream(), inside).message, why);
  EXPECT_EQ(inside, nullptr);
  EXPECT_EQ(cuda::free(0, outside, stream()).message, why);
  // A stream that is not captured is unaffected, whatever the capture mode, including growth and use across streams.
  EXPECT_EQ(cuda::allocate(0, 8 * kMiB, other.get(), inside).message, "");
  EXPECT_EQ(cuda::free(0, inside, other.get()).message, "");
  EXPECT_EQ(cuda::free(0, outside, other.get()).message, "");
  EXPECT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace attune
