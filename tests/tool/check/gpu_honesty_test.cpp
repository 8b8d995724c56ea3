// SPDX-License-Identifier: Apache-2.0
// Frauds planted on a GPU, each of which must be caught and named. The peer that plants them computes with one of our
// backends, so honest results are exact to the bit and only the cheat is wrong. Skipped without a GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "machine/cuda/events.h"
#include "plan/plan.h"
#include "tests/asked.h"
#include "tool/check/audit.h"
#include "tool/bench/row.h"

namespace attune {
namespace {

using nlohmann::json;

constexpr double kCeiling = 8e5;  // GFLOP/s
constexpr const char* kLine = "forward f16 b2 h16 q1024 k1024 d64 full";

enum class Cheat { none, layout, one_key, half, cached, other_stream, host };
struct Fraud {
  Cheat cheat = Cheat::none;
  Device gpu{};
  Problem problem{};  // as computed
  Args args{};
  Plan plan{};
  void* stream = nullptr;
  bool ran = false;
  cuda::Memory workspace{}, kept{}, delay{};
  cuda::OwnStream other{};
  std::string why{};
} fraud;

Tensor tensor_of(const json& j) {
  Tensor t{.data = reinterpret_cast<void*>(j["data"].get<uintptr_t>()), .dtype = DType::f16};
  t.extent = {j["extent"][0], j["extent"][1], j["extent"][2], j["extent"][3]};
  t.stride = {j["stride"][0], j["stride"][1], j["stride"][2]};
  t.device = DeviceKind::cuda, t.device_index = fraud.gpu.index;
  return t;
}
bool good(const Status& s) {
  if (!s.ok()) fraud.why = s.message;
  return s.ok();
}
size_t bytes_of(const Tensor& t) {
  return size_t(t.extent.batch) * size_t(t.extent.seq) * size_t(t.extent.head) * size_t(t.extent.dim) * 2;
}

int64_t set_up(const char* text) {
  const json asked = json::parse(text);
  Problem& p = fraud.problem = problem(asked["problem"].get<std::string>());
  fraud.args = {}, fraud.ran = false;
  fraud.stream = reinterpret_cast<void*>(asked["stream"].get<uintptr_t>());
  for (const auto& [role, name] : {std::pair(Role::q, "q"), {Role::k, "k"}, {Role::v, "v"}})
    fraud.args[role] = tensor_of(asked["tensors"][name]);
  fraud.args[Role::out] = tensor_of(asked["results"]["out"]);
  if (fraud.cheat == Cheat::layout) {  // takes the axes by position, as a kernel for the other layout
    std::swap(p.len_q, p.heads_q), std::swap(p.len_k, p.heads_kv);
    for (const Role r : {Role::q, Role::k, Role::v, Role::out})
      std::swap(fraud.args[r].extent.seq, fraud.args[r].extent.head),
          std::swap(fraud.args[r].stride.seq, fraud.args[r].stride.head);
  }
  if (fraud.cheat == Cheat::one_key) {
    p.len_k = 1;
    for (const Role r : {Role::k, Role::v}) fraud.args[r].extent.seq = 1;
  }
  if (fraud.cheat == Cheat::half) {
    p.batch /= 2;
    for (const Role r : {Role::q, Role::k, Role::v, Role::out}) fraud.args[r].extent.batch /= 2;
  }
  const Planner planner{.device = fraud.gpu};
  if (!good(planner.plan(p, fraud.plan))) return 0;
  if (!good(fraud.workspace.allocate(fraud.gpu.index, fraud.plan.workspace_bytes + 1))) return 0;
  if (!good(fraud.kept.allocate(fraud.gpu.index, bytes_of(fraud.args[Role::out])))) return 0;
  constexpr size_t kDelay = size_t(256) << 20;  // takes tens of microseconds to write
  return good(fraud.delay.allocate(fraud.gpu.index, kDelay)) ? 1 : 0;
}

bool attend(void* stream) {
  return good(fraud.plan.backend->run(fraud.plan, fraud.args, Workspace{fraud.workspace.data()}, stream));
}

int32_t run(int64_t handle) {
  if (!handle) return 0;
  const Tensor& out = fraud.args[Role::out];
  bool done = true;
  if (fraud.cheat == Cheat::cached && fraud.ran) {
    done = good(cuda::copy_inside(out.data, fraud.kept.data(), bytes_of(out), fraud.stream));
  } else if (fraud.cheat == Cheat::cached) {
    done = attend(fraud.stream) && good(cuda::copy_inside(fraud.kept.data(), out.data, bytes_of(out), fraud.stream));
  } else if (fraud.cheat == Cheat::other_stream) {
    for (int n = 0; n < 40 && done; ++n)
      done = good(cuda::fill(fraud.delay.data(), 0, fraud.delay.bytes(), fraud.other.get()));
    done = done && attend(fraud.other.get());
  } else if (fraud.cheat == Cheat::host) {  // done when the call returns, with nothing on the timed stream
    done = attend(fraud.other.get()) && good(cuda::wait(fraud.other.get()));
    const Clock clock = host_clock();
    for (const int64_t start = clock.now(); clock.now() - start < 3000000;) {}
  } else {
    done = attend(fraud.stream);
  }
  fraud.ran = true;
  return done ? 0 : 1;
}
int32_t fetch(int64_t) { return 0; }
void tear_down(int64_t) { fraud.plan = {}; }
void message(char* text, int64_t room) { std::strncpy(text, fraud.why.c_str(), size_t(room) - 1); }

class GpuHonesty : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status s = cuda::device(0, fraud.gpu); !s.ok()) GTEST_SKIP() << s.message;
    fraud.gpu.index = 0;
    ASSERT_EQ(timer_.open(0).message, "");
    if (fraud.other.get()) return;
    ASSERT_EQ(fraud.other.open(0).message, "");
  }
  std::vector<Record> row_of(Cheat cheat, double energy_seconds = 0) {
    static const attune_peer peer{"planted", "0", set_up, run, fetch, tear_down, message};
    fraud.cheat = cheat;
    Bench b{.peers = {&peer}, .device = fraud.gpu, .device_word = "cuda:0", .mode = Mode::cold, .timer = &timer_};
    b.energy_seconds = energy_seconds;
    b.timing.cold = true, b.timing.max_seconds = 0.05, b.timing.warm_up_seconds = 0.001;
    b.provenance.gpu = fraud.gpu.name;
    // A realistic ceiling only for the cheat it must catch: a copy of four megabytes also exceeds it.
    b.ceilings = Ceilings{.f16 = {"asked for", cheat == Cheat::host ? kCeiling : 1e9}, .copy_gbs = 1e9};
    b.floor_ns = 2000, b.aa_spread = 0.02;
    return measure_row(problem(kLine), b);
  }
  Record measured(Cheat cheat) {
    for (const Record& r : row_of(cheat))
      if (r.subject == "planted") return r;
    return {};
  }
  DeviceTimer timer_{};
};

TEST_F(GpuHonesty, an_honest_peer_is_ok) {
  const Record r = measured(Cheat::none);
  EXPECT_EQ(r.status, RecordStatus::ok) << r.message;
  EXPECT_EQ(r.parity.verdict, CheckVerdict::pass);
  EXPECT_FALSE(r.kernels.empty());
  EXPECT_EQ(r.samples_mhz.size(), r.samples_ns.size());
}

TEST_F(GpuHonesty, energy_is_in_the_records_where_it_is_asked_for) {
  EXPECT_EQ(measured(Cheat::none).sustained_ns, 0);
  for (const Record& r : row_of(Cheat::none, 0.5)) {
    ASSERT_EQ(r.status, RecordStatus::ok) << r.message;
    EXPECT_GT(r.sustained_ns, 0) << r.subject;
    if (timer_.nvml().joules() < 0) continue;  // this GPU has no energy counter
    EXPECT_GT(r.joules, 0) << r.subject;
    EXPECT_NEAR(r.joules, r.sustained_watts * r.sustained_ns * 1e-9, 1e-6 * r.joules) << r.subject;
  }
}

TEST_F(GpuHonesty, what_cheats_in_its_result_is_caught_by_name) {
  const struct { Cheat cheat; const char* name; } all[] = {{Cheat::layout, "swapped-layout"},
                                                           {Cheat::one_key, "one-key"},
                                                           {Cheat::half, "unwritten-output"},
                                                           {Cheat::cached, "cached-result"},
                                                           {Cheat::other_stream, "enqueue-only"}};
  for (const auto& [cheat, name] : all) {
    const Record r = measured(cheat);
    EXPECT_EQ(r.status, RecordStatus::failed) << name << ": " << r.message;
    EXPECT_EQ(r.parity.mistake, name) << r.message;
    EXPECT_NE(r.message.find(name), std::string::npos) << r.message;
    EXPECT_TRUE(r.verdict.empty()) << name;
  }
}

// The result is correct and in time: only the GPU's clock shows that the GPU did not compute it.
TEST_F(GpuHonesty, what_the_gpu_did_not_do_is_refused_by_name) {
  const Record r = measured(Cheat::host);
  EXPECT_EQ(r.parity.verdict, CheckVerdict::pass) << r.message;
  EXPECT_EQ(r.status, RecordStatus::refused) << r.message;
  EXPECT_EQ(r.parity.mistake, "cpu-on-gpu") << r.message;
  EXPECT_NE(r.message.find("cpu-on-gpu"), std::string::npos) << r.message;
}

TEST_F(GpuHonesty, nothing_is_compared_with_one_that_is_caught) {
  for (const Cheat cheat : {Cheat::cached, Cheat::one_key, Cheat::host})
    for (const Record& r : row_of(cheat)) EXPECT_NE(r.baseline, "planted") << r.subject;
}

// A record of this GPU, and variants with the traces of a slow clock or of a CPU.
TEST_F(GpuHonesty, the_audit_sees_what_the_record_of_this_gpu_says) {
  const Record honest = measured(Cheat::none);
  ASSERT_EQ(honest.status, RecordStatus::ok) << honest.message;
  const auto has = [](Record r, std::string_view name) {
    r.run = "20260131T120000Z-7", r.row_records = 1;
    std::vector<Finding> found;
    Line line{.number = 1};
    if (audit_line(to_json(r), line, found)) audit({&line, 1}, found);
    for (const Finding& f : found)
      if (f.wrong && f.name == name) return true;
    return false;
  };
  for (const char* name : {"throttled", "cpu-on-gpu", "enqueue-only"}) EXPECT_FALSE(has(honest, name)) << name;
  Record slow = honest;
  slow.provenance.gpu_most_mhz = 1980, slow.slowed_by.clear(), slow.provenance.clocks.clear();
  for (double& mhz : slow.samples_mhz) mhz = 600;
  derive(slow);
  EXPECT_TRUE(has(slow, "throttled"));
  Record on_cpu = honest;
  on_cpu.samples_mhz.clear(), on_cpu.mhz = 0;
  EXPECT_TRUE(has(on_cpu, "cpu-on-gpu"));
  Record launch = honest;
  for (double& ns : launch.samples_ns) ns = 500;
  launch.ceiling_gflops = kCeiling;
  derive(launch), launch.status = RecordStatus::ok;
  EXPECT_TRUE(has(launch, "enqueue-only"));
}

}  // namespace
}  // namespace attune
