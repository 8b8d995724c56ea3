// SPDX-License-Identifier: Apache-2.0
// A function of a shared library as a peer: the example that the documentation shows, and what goes wrong around it.
#include "tool/subjects/native_peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "machine/host.h"
#include "tests/tool/spawn.h"
#include "tool/bench/row.h"

namespace attune {
namespace {

const std::string kLibrary = ATTUNE_MY_ATTENTION;  // built from examples/my_attention.c

std::vector<Record> measured(const char* line, const std::string& peer = kLibrary + ":attention") {
  std::vector<const attune_peer*> peers;
  EXPECT_EQ(open_peers({peer}, "python3", peers).message, "");
  Bench b{.peers = peers, .device = this_cpu()};
  b.device.units = 1;
  b.timing.max_seconds = 0.05, b.timing.warm_up_seconds = 0.001;
  b.ceilings = Ceilings{}, b.floor_ns = b.peer_floor_ns = 1, b.aa_spread = 0.02;
  Problem p;
  EXPECT_EQ(parse(line, p).message, "");
  return measure_row(p, b);
}

TEST(NativePeer, is_checked_and_timed_like_all_subjects) {
  for (const char* line : {"forward f32 b2 h4/2 q33 k70 d24/16 causal", "forward f32 b1 h2 q5 k9 d8 full"}) {
    const std::vector<Record> records = measured(line);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].subject, std::string(peer_name(kLibrary)) + ":attention");
    EXPECT_EQ(records[0].status, RecordStatus::ok) << records[0].message;
    EXPECT_EQ(records[0].parity.verdict, CheckVerdict::pass);
    EXPECT_FALSE(records[0].samples_ns.empty());
    EXPECT_TRUE(records[0].peer);
    EXPECT_EQ(records[1].baseline, records[0].subject);
  }
}

TEST(NativePeer, a_problem_that_it_refuses_is_a_row_with_its_own_sentence) {
  for (const char* line : {"forward f32 b1 h2 q8 k8 d8 window2,0", "backward f32 b1 h2 q8 k8 d8 full",
                           "forward f32 b1 h2 q8 k8 d8 full softcap"}) {
    const std::vector<Record> records = measured(line);
    EXPECT_EQ(records[0].status, RecordStatus::unsupported);
    EXPECT_EQ(records[0].message, records[0].subject +
              ": serves an f32 forward over linear keys, full or causal, without options");
    EXPECT_TRUE(records[0].samples_ns.empty());
    EXPECT_EQ(records[1].status, RecordStatus::ok);
  }
}

TEST(NativePeer, one_that_cannot_be_loaded_is_a_row_that_says_so) {
  const std::vector<Record> none = measured("forward f32 b1 h2 q5 k9 d8 full", "/nowhere/libnone.so:f");
  EXPECT_EQ(none[0].status, RecordStatus::unsupported);
  EXPECT_EQ(none[0].message.find("libnone.so:f: is not available: /nowhere/libnone.so: "), 0u) << none[0].message;
  EXPECT_EQ(none[1].status, RecordStatus::ok);
  const std::vector<Record> symbol = measured("forward f32 b1 h2 q5 k9 d8 full", kLibrary + ":attend");
  EXPECT_EQ(symbol[0].message, join(peer_name(kLibrary), ":attend: is not available: '", kLibrary,
                                    "' has no function 'attend'"));
}

TEST(NativePeer, a_name_without_a_folder_is_a_file_here_and_no_library_of_the_system) {
  const std::vector<Record> records = measured("forward f32 b1 h2 q5 k9 d8 full", "libm.so:sin");
  EXPECT_EQ(records[0].message.find("libm.so:sin: is not available: ./libm.so: "), 0u) << records[0].message;
}

// What a run with peers that end their process said: one line of each record.
struct Told {
  Ran ran{};
  std::vector<std::string> records{};
};
Told bench(std::vector<std::string> words) {
  words.insert(words.begin(), {"bench", "--dtype", "f32", "--heads", "1", "--dim", "8", "--max-seconds", "0.02"});
  Told told{.ran = attune_says(std::move(words))};
  std::istringstream lines(told.ran.out);
  for (std::string line; std::getline(lines, line);) {
    Record r;
    EXPECT_EQ(from_json(line, r).message, "") << line;
    Problem p;
    EXPECT_EQ(parse(r.problem, p).message, "");
    told.records.push_back(join(p.len_q, " ", r.subject, " ", r.status.text(),
                                r.status == RecordStatus::failed ? ": " : "",
                                r.status == RecordStatus::failed ? r.message : ""));
  }
  return told;
}

TEST(NativePeer, that_ends_its_process_is_a_failed_row_and_the_run_goes_on) {
  const std::string library = ATTUNE_ENDS_ITSELF, out = temporary("run.jsonl");
  const std::string mine = std::string(peer_name(kLibrary)) + ":attention";
  const Told told = bench({"--len", "16,32,48", "--json", "--out", out, "--peer",
                           library + ":aborts," + library + ":leaves," + kLibrary + ":attention"});
  EXPECT_EQ(told.ran.code, 1);
  EXPECT_TRUE(has(told.ran.err, "attune bench: 4 of 12 records failed or were refused\n")) << told.ran.err;
  const std::string aborts = "failed: ends_itself.so:aborts: it ended its process with SIGABRT";
  const std::string leaves = "failed: ends_itself.so:leaves: it ended its process with exit code 0";
  EXPECT_EQ(told.records, (std::vector<std::string>{
                              "16 ends_itself.so:aborts unsupported", "16 ends_itself.so:leaves unsupported",
                              "16 " + mine + " ok", "16 cpu_forward ok",
                              "32 ends_itself.so:aborts " + aborts, "32 ends_itself.so:leaves " + leaves,
                              "32 " + mine + " ok", "32 cpu_forward ok",
                              "48 ends_itself.so:aborts " + aborts, "48 ends_itself.so:leaves " + leaves,
                              "48 " + mine + " ok", "48 cpu_forward ok"}))
      << told.ran.err;
  EXPECT_EQ(text_of(out), told.ran.out) << "the file has each record once";
  const Ran verified = attune_says({"verify", out});
  EXPECT_EQ(verified.code, 0) << verified.out << "\nfour starts are four runs, chained";
}

TEST(NativePeer, that_ends_its_process_three_times_is_not_run_again) {
  const Told told = bench({"--len", "32,33,34,35", "--json", "--peer", std::string(ATTUNE_ENDS_ITSELF) + ":aborts"});
  ASSERT_EQ(told.records.size(), 8u) << told.ran.err;
  EXPECT_EQ(told.records[6], "35 ends_itself.so:aborts failed: ends_itself.so:aborts: not run again: it ended its "
                             "process 3 times, at last with SIGABRT");
  EXPECT_EQ(told.records[7], "35 cpu_forward ok");
}

TEST(NativePeer, earlier_rows_of_the_file_are_not_those_of_a_run_that_is_started_again) {
  const std::string out = temporary("twice.jsonl"), peer = std::string(ATTUNE_ENDS_ITSELF) + ":aborts";
  for (const size_t records : {4u, 8u}) {
    const Told told = bench({"--len", "16,32", "--json", "--out", out, "--peer", peer});
    EXPECT_EQ(told.records.size(), 4u) << told.ran.err;
    const std::string text = text_of(out);
    EXPECT_EQ(size_t(std::count(text.begin(), text.end(), '\n')), records) << "each run measures all its rows";
  }
  const Ran verified = attune_says({"verify", out});
  EXPECT_EQ(verified.code, 0) << verified.out;
}

TEST(NativePeer, a_signal_ends_the_process_of_the_peers_too) {
  Background run({"bench", "--len", "16,32", "--dtype", "f32", "--max-seconds", "60", "--peer",
                  kLibrary + ":attention"});
  ASSERT_TRUE(comes([&] { return has(run.says(), "q16"); })) << run.says();
  EXPECT_EQ(run.ends(SIGTERM), 143);
  EXPECT_TRUE(has(run.says(), "interrupted after ")) << run.says();
}

}  // namespace
}  // namespace attune
