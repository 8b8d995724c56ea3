// SPDX-License-Identifier: Apache-2.0
// A function of a shared library as a peer: the example that the documentation shows, and what goes wrong around it.
#include "tool/subjects/native_peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "machine/host.h"
#include "tests/tool/spawn.h"
#include "tool/bench/row.h"

namespace attune {
namespace {

const std::string kLibrary = ATTUNE_MY_ATTENTION;  // built from examples/my_attention.c
const std::string kWrong = ATTUNE_WRONG_ATTENTION;
constexpr const char* kCausal = "forward f32 b1 h4/2 q31 k70 d24/16 causal";

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

TEST(NativePeer, that_prints_leaves_the_answer_alone) {
  const Told told = bench({"--len", "16,32", "--json", "--peer", std::string(ATTUNE_ENDS_ITSELF) + ":prints"});
  EXPECT_EQ(told.ran.code, 0) << told.ran.err;
  EXPECT_EQ(told.records.size(), 4u) << told.ran.out;
  EXPECT_TRUE(has(told.ran.err, "printed\n") && has(told.ran.err, "written\n")) << told.ran.err;
  const Ran p = attune_says({"parity", "--json", "--peer", std::string(ATTUNE_ENDS_ITSELF) + ":prints", kCausal});
  EXPECT_EQ(p.code, 1) << p.err << "\nit serves nothing, so nothing was compared";
  EXPECT_TRUE(nlohmann::json::accept(p.out)) << p.out;
}

// A Python without torch, or whose torch prints while it is loaded.
TEST(Python, what_it_prints_and_any_bytes_of_a_name_leave_one_sentence_and_the_answer) {
  std::filesystem::create_directories(temporary("noisy"));
  std::ofstream(temporary("noisy/torch.py")) << "import os\nos.write(1, b'noise\\n')\nprint('more')\n"
                                                "raise ImportError('of the test')\n";
  const Ran r = attune_says({"bench", "forward f32 b1 h1 q16 k16 d8 full", "--max-seconds", "0.02", "--json", "--peer",
                             "\xff\xfe.py:f"}, {"PYTHONPATH=" + temporary("noisy")});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_FALSE(has(r.err, "Traceback")) << r.err;
  EXPECT_TRUE(has(r.err, "noise\n")) << r.err;
  std::istringstream lines(r.out);
  std::vector<Record> records;
  for (std::string line; std::getline(lines, line);)
    EXPECT_EQ(from_json(line, records.emplace_back()).message, "") << line;
  ASSERT_EQ(records.size(), 2u) << r.out;
  EXPECT_TRUE(has(records[0].message, "is not available: ")) << records[0].message;
}

TEST(Python, that_is_none_is_one_sentence_and_not_success) {
  for (const char* const command : {"bench", "parity", "memory"})
    for (const char* const program : {"/bin/true", "/bin/false", "/nowhere/python3"}) {
      std::vector<std::string> words = {command, "forward f32 b1 h1 q16 k16 d8 full", "--peer", "torch:sdpa",
                                        "--python", program};
      if (command == std::string("memory")) words.push_back("--measure");
      const Ran r = attune_says(words);
      EXPECT_EQ(r.code, 3) << command << " " << program;
      EXPECT_TRUE(has(r.err, join("attune ", command, ": --python: '", program, "' "))) << r.err;
      EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
      EXPECT_EQ(r.out, "");
    }
  const Ran r = attune_says({"parity", "forward f32 b1 h1 q16 k16 d8 full", "--peer", "torch:sdpa", "--python",
                             "python3 -x"});
  EXPECT_TRUE(has(r.err, "give a program alone, without arguments")) << r.err;
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

TEST(NativePeer, a_wrong_function_is_named_and_not_timed) {
  for (const auto& [symbol, mistake] : {std::pair("off_by_one", "window-off-by-one"), {"no_scale", "missing-scale"}}) {
    const std::vector<Record> records = measured("forward f32 b1 h4 q64 k96 d64 causal", kWrong + ":" + symbol);
    EXPECT_EQ(records[0].status, RecordStatus::failed);
    EXPECT_EQ(records[0].parity.mistake, mistake);
    EXPECT_TRUE(records[0].samples_ns.empty());
  }
}

TEST(NativePeer, a_wrong_backward_is_named_and_not_timed) {
  constexpr const char* kLine = "backward f32 b1 h4/2 q40 k72 d24 causal";
  for (const auto& [symbol, mistake] :
       {std::pair("right", ""), {"no_scale", "missing-scale"}, {"off_by_one", "window-off-by-one"},
        {"swapped", "swapped-gradients"}, {"last_of_group", "missing-group-sum"}}) {
    const std::vector<Record> records = measured(kLine, join(kWrong, ":", symbol, "_backward"));
    EXPECT_EQ(records[0].status, *mistake ? RecordStatus::failed : RecordStatus::ok) << records[0].message;
    EXPECT_EQ(records[0].parity.mistake, mistake) << records[0].message;
    EXPECT_EQ(records[0].samples_ns.empty(), *mistake != 0);
  }
}

// `attune parity` with subjects.
struct Answer {
  Ran ran;
  nlohmann::json rows() const { return nlohmann::json::parse(ran.out)["rows"]; }
};
Answer parity(std::vector<std::string> words) {
  words.insert(words.begin(), {"parity", "--json"});
  return {attune_says(std::move(words))};
}

TEST(PeerParity, has_a_row_for_each_line_and_subject) {
  const Answer a = parity({"--peer", kLibrary + ":attention", "--backend", "cpu_forward", kCausal,
                           "forward f32 b1 h2 q5 k9 d8 full", "--case", "forward f32 b2 h2 q9 k9 d8 full | seed=3"});
  EXPECT_EQ(a.ran.code, 0) << a.ran.err;
  const nlohmann::json rows = a.rows();
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0]["problem"], kCausal);
  EXPECT_EQ(rows[4]["problem"], "forward f32 b2 h2 q9 k9 d8 full | seed=3");
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row["verdict"], "PASS") << row;
    EXPECT_EQ(row["against"], "reference");
    EXPECT_LT(row["mae"], 1e-6);
    EXPECT_GT(row["max"], row["mae"]);
    EXPECT_GT(row["relative_l2"], 0);
  }
  EXPECT_EQ(rows[0]["outputs"].size(), 1u);  // a peer writes no lse
  EXPECT_EQ(rows[1]["outputs"].size(), 2u);
}

TEST(PeerParity, a_row_that_a_peer_lacks_says_so_and_alone_is_no_success) {
  for (const char* const against : {"", "cpu_forward"}) {
    std::vector<std::string> words = {"--peer", kLibrary + ":attention", "forward f32 b1 h2 q8 k8 d8 window2,0"};
    if (*against) words.insert(words.end(), {"--against", against});
    const Answer a = parity(words);
    EXPECT_EQ(a.ran.code, 1) << "nothing was compared";
    EXPECT_EQ(a.ran.err, "attune parity: nothing was compared\n");
    EXPECT_EQ(a.rows()[0]["verdict"], "-");
    EXPECT_TRUE(a.rows()[0]["message"].get<std::string>().ends_with("full or causal, without options"));
    EXPECT_FALSE(a.rows()[0].contains("mae"));
  }
}

TEST(PeerParity, a_wrong_function_is_named_and_fails) {
  for (const auto& [symbol, mistake] : {std::pair("off_by_one", "window-off-by-one"), {"no_scale", "missing-scale"}})
    for (const char* const against : {"", "cpu_forward"}) {
      std::vector<std::string> words = {"--peer", kWrong + ":" + symbol, "forward f32 b1 h4 q64 k96 d64 causal"};
      if (*against) words.insert(words.end(), {"--against", against});
      const Answer a = parity(words);
      EXPECT_EQ(a.ran.code, 1) << a.ran.err;
      EXPECT_EQ(a.rows()[0]["verdict"], "FAIL");
      EXPECT_TRUE(a.rows()[0]["mistake"].get<std::string>().starts_with(std::string(mistake) + ": ")) << a.rows()[0];
    }
  const Answer back = parity({"--peer", kWrong + ":swapped_backward", "backward f32 b1 h4/2 q40 k72 d24 causal"});
  EXPECT_TRUE(has(back.ran.out, "swapped-gradients: dk holds dv")) << back.ran.out;
  // The other one of a pair may be the wrong one.
  const Answer a = parity({"--backend", "cpu_forward", "--against", kWrong + ":no_scale", kCausal});
  EXPECT_EQ(a.ran.code, 1);
  EXPECT_TRUE(has(a.rows()[0]["message"], "no_scale: wrong result: ")) << a.rows()[0];
}

TEST(PeerParity, one_that_writes_into_its_inputs_fails_alone) {
  const std::string writes = kWrong + ":writes_inputs", right = kLibrary + ":attention";
  for (const char* const against : {"", "cpu_forward"}) {
    std::vector<std::string> words = {"--peer", writes + "," + right, kCausal};
    if (*against) words.insert(words.end(), {"--against", against});
    const Answer a = parity(words);
    EXPECT_EQ(a.ran.code, 1);
    EXPECT_EQ(a.rows()[0]["verdict"], "FAIL");
    EXPECT_EQ(a.rows()[0]["message"], "writes into its inputs");
    EXPECT_EQ(a.rows()[1]["verdict"], *against ? "compared" : "PASS") << a.rows()[1];
    EXPECT_LT(a.rows()[1]["mae"], 1e-5);
  }
  const Answer other = parity({"--backend", "cpu_forward", "--against", writes, kCausal});
  EXPECT_EQ(other.ran.code, 1);
  EXPECT_TRUE(has(other.rows()[0]["message"], "writes_inputs: writes into its inputs")) << other.rows()[0];
}

TEST(PeerParity, two_subjects_differ_by_what_their_results_do) {
  const Answer a = parity({"--peer", kLibrary + ":attention", "--against", "cpu_forward", kCausal});
  EXPECT_EQ(a.ran.code, 0) << a.ran.err;
  EXPECT_EQ(a.rows()[0]["against"], "cpu_forward");
  EXPECT_EQ(a.rows()[0]["verdict"], "compared");
  EXPECT_GT(a.rows()[0]["mae"], 0);
  EXPECT_LT(a.rows()[0]["max"], 1e-5);
  // Two plans of one sum differ by nothing.
  const Answer same = parity({"--backend", "cpu_forward", "--peer", kLibrary + ":attention", "--against",
                              kLibrary + ":attention", kCausal});
  ASSERT_EQ(same.rows().size(), 1u);
  EXPECT_EQ(same.rows()[0]["mae"], a.rows()[0]["mae"]);
}

TEST(PeerParity, what_cannot_be_asked_is_a_sentence) {
  EXPECT_EQ(parity({"--peer", kLibrary + ":attention"}).ran.code, 2);
  EXPECT_EQ(parity({kCausal}).ran.code, 2);
  EXPECT_EQ(parity({"--peer", kLibrary + ":attention", "--quick"}).ran.code, 2);
  EXPECT_EQ(parity({"--backend", "cpu_forward", "--against", "cpu_forward", kCausal}).ran.code, 2);
  EXPECT_EQ(parity({"--backend", "cpu_forward", "--against", "toaster", kCausal}).ran.err.rfind(
                "attune parity: --peer: 'toaster' is not one of torch", 0), 0u);
}

// The way of a user: two functions are measured over windows and over compressed keys, and the lengths from which one
// is faster go into the configuration, whose other bytes stay. The second takes 40 us a key, the first 90 keys' worth.
TEST(Thresholds, of_two_subjects_go_from_bench_into_a_configuration) {
  const std::string library = ATTUNE_TWO_SPEEDS, out = temporary("speeds.jsonl"), yaml = temporary("base.yaml");
  const std::string peers = library + ":steady," + library + ":growing";
  std::vector<std::string> bench = {"bench", "--peer", peers, "--max-seconds", "0.15", "--out", out};
  for (const int window : {16, 32, 64, 128, 256})
    bench.push_back(join("forward f32 b1 h1 q40 k300 d8 window", window - 1, ",0"));
  for (const int keys : {16, 32, 64, 128, 256})
    bench.push_back(join("forward f32 b1 h1 q64 k", keys, " d8 causal@absolute/2+1"));
  const std::string before = text_of(ATTUNE_SOURCE_DIR "/tests/tool/tune/base.yaml");
  EXPECT_EQ(std::count(before.begin(), before.end(), '\n'), 60);
  std::string expected = before;
  expected.replace(expected.find("4096     #"), 4, "128");
  expected.replace(expected.find("-1         #"), 2, "128");
  const std::string name(peer_name(library));
  Ran tuned;
  for (int attempt = 0; attempt < 3 && text_of(yaml) != expected; ++attempt) {  // a busy machine blurs speeds
    std::filesystem::remove(out);
    std::ofstream(yaml) << before;
    const Ran measured = attune_says(bench);
    ASSERT_EQ(measured.code, 0) << measured.err;
    tuned = attune_says({"tune", out, "--between", name + ":steady," + name + ":growing", "--yaml", yaml,
                         "--key", "runtime.fa2_min_len_win,runtime.fa2_min_len_cmp"});
    EXPECT_EQ(tuned.code, 0) << tuned.err;
  }
  EXPECT_EQ(text_of(yaml), expected) << tuned.out;
}

}  // namespace
}  // namespace attune
