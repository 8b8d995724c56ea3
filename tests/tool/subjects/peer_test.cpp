// SPDX-License-Identifier: Apache-2.0
// Peers as the tool sees them, with fake callbacks instead of a Python host: which are requested, what they receive,
// that a missing one is reported, and that a wrong result is never timed.
#include "tool/subjects/peer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "machine/host.h"
#include "tool/bench/sweep.h"

namespace attune {
namespace {

using nlohmann::json;

struct Fake {
  std::string asked{}, message{};
  int runs = 0, set_ups = 0, once = 0;
  bool right = true;
} fake;

// The result for a single key: its value, for every query.
void answer(const json& j) {
  const json &v = j["tensors"]["v"], &out = j["results"]["out"];
  const auto* from = reinterpret_cast<const float*>(v["data"].get<uintptr_t>());
  auto* to = reinterpret_cast<float*>(out["data"].get<uintptr_t>());
  const int count = out["extent"][1].get<int>() * out["extent"][3].get<int>();
  for (int n = 0; n < count; ++n) to[n] = fake.right ? from[n % out["extent"][3].get<int>()] : 0.f;
}

int64_t set_up(const char* problem) {
  fake.asked = problem;
  fake.message = "expanded";
  return ++fake.set_ups;
}
int64_t refuse(const char*) { return fake.message = "is not here: no module", 0; }
int32_t run(int64_t handle) { return fake.runs += handle > 0, 0; }
int32_t fetch(int64_t) { return answer(json::parse(fake.asked)), 0; }
void tear_down(int64_t) { --fake.set_ups; }
void message(char* text, int64_t room) { std::strncpy(text, fake.message.c_str(), size_t(room)); }

const attune_peer& here() {
  static const attune_peer peer{"torch:sdpa", "torch 9", set_up, run, fetch, tear_down, message};
  return peer;
}
const attune_peer& missing() {
  static const attune_peer peer{"fa3", "", refuse, run, fetch, tear_down, message};
  return peer;
}

// Succeeds once, then fails.
int32_t run_once(int64_t handle) { return handle > 0 && fake.once++ ? 1 : 0; }
const attune_peer& breaking() {
  static const attune_peer peer{"fa3", "1", set_up, run_once, fetch, tear_down, message};
  return peer;
}

// Out of memory during set-up and during a call.
int64_t no_room(const char*) { return fake.message = "OutOfMemoryError: tried 2 GiB", -1; }
int32_t run_without_room(int64_t handle) {
  fake.message = "RuntimeError: you tried to allocate 8 bytes";
  return fake.runs += handle > 0, handle > 0 ? PEER_OUT_OF_MEMORY : PEER_DONE;
}
const attune_peer& too_large() {
  static const attune_peer peer{"torch:math", "1", no_room, run, fetch, tear_down, message};
  return peer;
}
const attune_peer& too_large_to_run() {
  static const attune_peer peer{"torch:efficient", "1", set_up, run_without_room, fetch, tear_down, message};
  return peer;
}

// Scales its first input in place, in the call with this number and all later ones.
int first_in_place = 1;
int32_t run_in_place(int64_t handle) {
  if (handle > 0 && ++fake.runs >= first_in_place) {
    const json j = json::parse(fake.asked);
    *reinterpret_cast<float*>(j["tensors"]["q"]["data"].get<uintptr_t>()) *= 0.5f;
  }
  return PEER_DONE;
}
const attune_peer& in_place() {
  static const attune_peer peer{"flash_attn", "1", set_up, run_in_place, fetch, tear_down, message};
  return peer;
}

// Queries over a single key, so that answer() is correct.
Problem one_key(int queries = 4) {
  Problem p;
  EXPECT_EQ(parse(join("forward f32 b1 h1 q", queries, " k1 d8 full"), p).message, "");
  return p;
}
Bench bench_with(std::vector<const attune_peer*> peers, std::string baseline = "") {
  Bench b{.peers = std::move(peers), .baseline = std::move(baseline), .device = this_cpu()};
  b.device.units = 1;
  b.timing.max_seconds = 0.05, b.timing.warm_up_seconds = 0.001;
  b.ceilings = Ceilings{}, b.floor_ns = b.peer_floor_ns = 1, b.aa_spread = 0.02;
  return b;
}
std::vector<Record> measured(std::vector<const attune_peer*> peers, std::string baseline = "") {
  Bench b = bench_with(std::move(peers), std::move(baseline));
  return measure_row(one_key(), b);
}

TEST(Peers, torch_stands_for_the_ways_that_serve_the_device) {
  std::vector<std::string> cpu, gpu, mixed;
  ASSERT_TRUE(peers_named({"torch"}, false, cpu).ok());
  ASSERT_TRUE(peers_named({"torch"}, true, gpu).ok());
  ASSERT_TRUE(peers_named({"fa3", "torch:cudnn", "torch", "fa3"}, true, mixed).ok());
  EXPECT_EQ(cpu, (std::vector<std::string>{"torch:sdpa", "torch:math"}));
  EXPECT_EQ(gpu, (std::vector<std::string>{"torch:flash", "torch:cudnn", "torch:efficient"}));
  EXPECT_EQ(mixed, (std::vector<std::string>{"fa3", "torch:cudnn", "torch:flash", "torch:efficient"}));
}

TEST(Peers, an_unknown_one_is_named) {
  std::vector<std::string> names;
  EXPECT_EQ(peers_named({"torch:flsh"}, true, names).message,
            "--peer: 'torch:flsh' is not one of torch, torch:sdpa, torch:math, torch:flash, torch:cudnn, "
            "torch:efficient, torch:flex, flash_attn, fa3, flash_attn1, xformers, flashinfer, jax, "
            "<file>.py:<function>, <library>.so:<symbol>; did you mean 'torch:flash'?");
}

TEST(Peers, are_found_by_the_name_they_registered) {
  EXPECT_EQ(find_peer("torch:sdpa"), nullptr);
  EXPECT_FALSE(is_hosted());
  attune_peer_register(&here());
  EXPECT_TRUE(is_hosted());
  ASSERT_NE(find_peer("torch:sdpa"), nullptr);
  EXPECT_EQ(find_peer("torch"), nullptr);
}

TEST(Peers, share_memory_and_are_told_where_they_run) {
  fake = {};
  const std::vector<Record> records = measured({&here()});
  ASSERT_EQ(records.size(), 2u);
  const json j = json::parse(fake.asked);
  EXPECT_EQ(j["gpu"], -1);
  EXPECT_EQ(j["stream"], 0u);
  EXPECT_EQ(j["threads"], 1);
  EXPECT_EQ(j["mask"], json::parse(R"({"kind": "full", "left": 0, "right": 0, "align": "bottom_right", "k_step": 1,
                                       "k_phase": 0, "blocks": null})"));
  EXPECT_EQ(j["options"], json::array());
  EXPECT_EQ(j["tensors"]["q"]["extent"], json({1, 4, 1, 8}));
  EXPECT_EQ(records[0].status, RecordStatus::ok) << records[0].message;
  EXPECT_EQ(records[0].why, "a peer: expanded");
  EXPECT_EQ(records[0].note, "expanded");
  EXPECT_TRUE(records[0].peer && !records[1].peer);
  EXPECT_EQ(records[0].provenance.peers, "torch 9");
  EXPECT_EQ(records[0].parity.verdict, CheckVerdict::pass);
  EXPECT_GT(fake.runs, int(records[0].samples_ns.size()));
  EXPECT_EQ(fake.set_ups, 0);  // all torn down
}

TEST(Peers, are_told_the_whole_problem) {
  fake = {};
  Problem p;
  ASSERT_EQ(parse("forward f32 b1 h4/2 q4 k9 d8 window*,-1@top_left blocks4x4x3 softcap bias sink", p).message, "");
  Bench b = bench_with({&here()});
  (void)measure_row(p, b);
  const json j = json::parse(fake.asked);
  EXPECT_EQ(j["mask"], json::parse(R"({"kind": "window", "left": null, "right": -1, "align": "top_left", "k_step": 1,
                                       "k_phase": 0, "blocks": [4, 4, 3]})"));
  EXPECT_EQ(j["options"], json({"softcap", "bias", "sink"}));
  EXPECT_EQ(j["softcap"], 2.0);
  for (const char* role : {"q", "k", "v", "bias", "sinks", "block_begin", "block_column"})
    EXPECT_TRUE(j["tensors"].contains(role)) << role;
  EXPECT_EQ(j["results"].size(), 1u) << "a forward of a peer writes out and nothing else: " << j["results"];
}

TEST(Peers, of_ones_own_are_named_without_their_folder) {
  std::vector<std::string> names;
  ASSERT_EQ(peers_named({"a/my.py:f", "torch:sdpa", "./lib.so:g", "a/my.py:f"}, false, names).message, "");
  EXPECT_EQ(names, (std::vector<std::string>{"a/my.py:f", "torch:sdpa", "./lib.so:g"}));
  EXPECT_EQ(peer_name("a/my.py:f"), "my.py:f");
  EXPECT_EQ(peer_name("torch:sdpa"), "torch:sdpa");
  names.clear();
  EXPECT_EQ(peers_named({"a/my.py:f", "b/my.py:f"}, false, names).message,
            "--peer: 'a/my.py:f' and 'b/my.py:f' have one name in records, my.py:f; rename one of them");
}

TEST(Peers, a_missing_one_is_a_row_that_says_so) {
  fake = {};
  const std::vector<Record> records = measured({&missing(), &here()});
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].subject, "fa3");
  EXPECT_EQ(records[0].status, RecordStatus::unsupported);
  EXPECT_EQ(records[0].message, "fa3: is not here: no module");
  EXPECT_TRUE(records[0].samples_ns.empty());
  EXPECT_EQ(records[1].status, RecordStatus::ok);
  EXPECT_EQ(records[2].baseline, "torch:sdpa");
}

TEST(Peers, are_measured_where_every_backend_was_skipped_as_too_long_and_the_row_is_whole) {
  fake = {};
  Bench b = bench_with({&here(), &missing()});
  b.backends = {"cpu_standard"};
  b.too_long = {{one_key(2), "cpu_standard"}};
  const std::vector<Record> records = measure_row(one_key(), b);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].status, RecordStatus::oom);
  EXPECT_EQ(records[0].message.find("cpu_standard: not tried: "), 0u) << records[0].message;
  EXPECT_EQ(records[1].subject, "torch:sdpa");
  EXPECT_EQ(records[1].status, RecordStatus::ok) << records[1].message;
  EXPECT_EQ(records[2].status, RecordStatus::unsupported);
  Sweep resumed;
  resumed.rows.push_back({one_key()}), resumed.benches.push_back(b);
  EXPECT_EQ(resumed.done(), 0u);
  resumed.keep(records);
  EXPECT_EQ(resumed.done(), 1u);
}

TEST(Peers, one_without_room_is_out_of_memory_and_longer_rows_do_not_try_it) {
  fake = {};
  Bench b = bench_with({&too_large(), &too_large_to_run(), &here()});
  std::vector<Record> records = measure_row(one_key(2), b);
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].status, RecordStatus::oom) << records[0].message;
  EXPECT_EQ(records[1].status, RecordStatus::oom) << records[1].message;
  EXPECT_EQ(records[1].message.find("torch:efficient: RuntimeError: "), 0u) << records[1].message;
  EXPECT_EQ(records[2].status, RecordStatus::ok) << records[2].message;
  EXPECT_EQ(records[3].status, RecordStatus::ok) << records[3].message;
  EXPECT_EQ(fake.set_ups, 0);  // all torn down
  fake = {};
  b.peers = {&too_large(), &too_large_to_run()};
  records = measure_row(one_key(4), b);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].message, "torch:math: not tried: not enough memory for the shorter " + name(one_key(2)));
  EXPECT_EQ(records[1].message, "torch:efficient: not tried: not enough memory for the shorter " + name(one_key(2)));
  EXPECT_EQ(records[1].status, RecordStatus::oom);
  EXPECT_EQ(fake.asked, "");
  EXPECT_EQ(records[2].status, RecordStatus::ok);
  records = measure_row(one_key(1), b);  // a shorter row may fit
  EXPECT_NE(fake.asked, "");
}

TEST(Peers, a_wrong_result_is_a_failure_and_not_timed) {
  fake = {.right = false};
  const std::vector<Record> records = measured({&here()});
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].status, RecordStatus::failed);
  EXPECT_NE(records[0].message.find("torch:sdpa: wrong result"), std::string::npos) << records[0].message;
  EXPECT_TRUE(records[0].samples_ns.empty());
  EXPECT_EQ(fake.runs, 1);
  EXPECT_EQ(records[1].status, RecordStatus::ok);
}

TEST(Peers, one_that_changes_its_inputs_fails_and_the_others_get_them_back) {
  fake = {}, first_in_place = 1;
  std::vector<Record> records = measured({&in_place(), &here()});
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].status, RecordStatus::failed);
  EXPECT_EQ(records[0].message, "flash_attn: a call changes its input q");
  EXPECT_TRUE(records[0].samples_ns.empty());
  EXPECT_EQ(records[2].baseline, "torch:sdpa");
  EXPECT_EQ(records[2].parity.verdict, CheckVerdict::pass) << records[2].parity.message;
  fake = {}, first_in_place = 3;  // after it was checked
  records = measured({&in_place(), &here()});
  EXPECT_EQ(records[0].status, RecordStatus::failed);
  EXPECT_EQ(records[0].message, "flash_attn: a call changed the input q while it was timed");
  EXPECT_EQ(records[1].status, RecordStatus::ok) << records[1].message;
  EXPECT_EQ(records[2].baseline, "torch:sdpa");
}

TEST(Peers, the_baseline_is_the_one_that_was_named) {
  fake = {};
  std::vector<Record> records = measured({&here()}, "cpu_forward");
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].baseline, records[1].subject);
  EXPECT_EQ(records[1].baseline, "");
  records = measured({&here()});
  EXPECT_EQ(records[0].baseline, "");
  EXPECT_EQ(records[1].baseline, "torch:sdpa");
  EXPECT_EQ(records[1].aa_spread, 0.02);
}

TEST(Peers, one_that_is_too_fast_to_be_true_has_no_verdict) {
  fake = {};
  Bench b = bench_with({&here()}, "cpu_forward");
  b.ceilings->f32 = {.gflops = 1};  // a call that does nothing is faster, one of ours is not
  const std::vector<Record> records = measure_row(one_key(), b);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].status, RecordStatus::refused) << records[0].gflops;
  EXPECT_EQ(records[1].status, RecordStatus::ok) << records[1].message;
  EXPECT_EQ(records[0].verdict + records[0].baseline, "");
}

TEST(Peers, one_that_failed_is_no_baseline) {
  fake = {};
  std::vector<Record> records = measured({&breaking(), &here()});
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].status, RecordStatus::failed);
  EXPECT_EQ(records[1].baseline, "");
  EXPECT_EQ(records[2].baseline, "torch:sdpa");
  EXPECT_GT(records[2].ratio.value, 0);
  fake = {};
  records = measured({&here(), &breaking()}, "fa3");
  EXPECT_EQ(records[1].status, RecordStatus::failed);
  for (const Record& r : records) EXPECT_EQ(r.baseline, "") << r.subject;
  fake = {};
  records = measured({&breaking()});
  for (const Record& r : records) EXPECT_EQ(r.baseline, "") << r.subject;
}

}  // namespace
}  // namespace attune
