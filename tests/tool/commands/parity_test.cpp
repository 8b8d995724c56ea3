// `attune parity` and `attune features` as a shell sees them: last line, exit code, messages, JSON.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "machine/cuda/runtime.h"
#include "plan/plan.h"
#include "tests/tool/spawn.h"
#include "tool/commands/commands.h"
#include "verify/suite.h"

namespace attune {
namespace {

using json = nlohmann::json;

struct Answer {
  int code = 0;
  std::string out, err;

  std::string last_line() const {
    const std::string text = out.substr(0, out.find_last_not_of('\n') + 1);
    return text.substr(text.rfind('\n') + 1);
  }
};

Answer call(std::vector<std::string> words) {
  words.insert(words.begin(), "attune");
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Answer a;
  a.code = attune_tool_main(int(words.size()), argv.data());
  a.out = testing::internal::GetCapturedStdout();
  a.err = testing::internal::GetCapturedStderr();
  return a;
}

constexpr const char* kCase = "forward bf16 b2 h4/2 q31 k129 d64 causal | seed=3 drawn bhsd cache";

TEST(parity, a_case_ends_with_the_plain_line) {
  const Answer a = call({"parity", "--case", kCase, "--backend", "cpu_forward"});
  EXPECT_EQ(a.code, kOk) << a.out << a.err;
  EXPECT_EQ(a.last_line(), "1 passed, 0 failed");
  EXPECT_NE(a.out.find("relative L2"), std::string::npos);
}

TEST(parity, json_has_every_figure) {
  const Answer a = call({"parity", "--case", kCase, "--json"});
  EXPECT_EQ(a.code, kOk) << a.err;
  const json j = json::parse(a.out);
  EXPECT_EQ(j["failed"], 0);
  EXPECT_GE(j["passed"], 1);
  EXPECT_EQ(j["runs"][0]["case"], kCase);
  EXPECT_EQ(j["runs"][0]["outputs"].size(), 2u);  // out and lse
  for (const char* figure : {"mae", "max", "relative_l2", "tolerance_used"})
    EXPECT_TRUE(j["runs"][0]["outputs"][0][figure].is_number()) << figure;
  EXPECT_EQ(j["gate"], 5e-5);
}

// The output at the end: "N empty", then "N passed, N failed".
TEST(parity, what_compares_nothing_is_empty_and_not_passed) {
  const std::string line = "forward f32 b2 h2 q70 k70 d64 window2,-3";
  const Answer a = call({"parity", "--case", line, "--backend", "cpu_forward"});
  EXPECT_EQ(a.code, kFailed) << a.out;
  EXPECT_EQ(a.last_line(), "0 passed, 0 failed");
  EXPECT_NE(a.out.find("\n1 empty\n0 passed, 0 failed\n"), std::string::npos) << a.out;
  EXPECT_NE(a.out.find("\nEMPTY  " + line + "\n"), std::string::npos) << a.out;
  EXPECT_NE(a.err.find("nothing was compared"), std::string::npos) << a.err;
  const json j = json::parse(call({"parity", "--case", line, "--backend", "cpu_forward", "--json"}).out);
  EXPECT_EQ(j["passed"], 0);
  EXPECT_EQ(j["empty"], 1);
  EXPECT_EQ(j["runs"][0]["verdict"], "EMPTY");
  EXPECT_EQ(j["backends"][0]["empty"], 1);
  const Answer meant = call({"parity", "--case", line + " | empty", "--backend", "cpu_forward"});
  EXPECT_EQ(meant.code, kOk) << meant.out << meant.err;
  EXPECT_NE(meant.out.find("\n0 empty\n1 passed, 0 failed\n"), std::string::npos) << meant.out;
  const Answer ring = call({"parity", "--ring", "--ranks", "2", "--case", "forward f32 b1 h2 q20 k20 d16 window*,-30"});
  EXPECT_EQ(ring.code, kFailed) << ring.out;
  EXPECT_EQ(ring.last_line(), "0 passed, 0 failed");
  EXPECT_NE(ring.err.find("nothing was compared"), std::string::npos) << ring.err;
}

// An example that passes on zeros would be worse than none.
TEST(parity, examples_compare_something) {
  for (const std::string& text : {call({"parity", "--help"}).out, text_of(ATTUNE_SOURCE_DIR "/docs/cli.md"),
                                 text_of(ATTUNE_SOURCE_DIR "/docs/testing.md")}) {
    const size_t at = text.find("--case \"");
    ASSERT_NE(at, text.npos);
    const size_t from = at + 8;
    std::string line = text.substr(from, text.find('"', from) - from);
    if (const size_t fold = line.find('\n'); fold != line.npos)  // of the help
      line.replace(fold, line.find_first_not_of(" \n", fold) - fold, " ");
    const Answer a = call({"parity", "--backend", "cpu_forward", "--case", line, "--json"});
    EXPECT_EQ(a.code, kOk) << line << a.err;
    EXPECT_GT(json::parse(a.out)["runs"][0]["outputs"][0]["max"], 0) << line;
  }
}

TEST(parity, mistakes_are_told_apart_by_the_exit_code) {
  EXPECT_EQ(call({"parity", "--backend", "nobody"}).code, kUsage);
  EXPECT_EQ(call({"parity", "--case", "forward f99"}).code, kUsage);
  EXPECT_EQ(call({"parity", "--case", kCase, "--coverage"}).code, kUsage);
  EXPECT_EQ(call({"parity", "--device", "toaster"}).code, kUsage);
  EXPECT_EQ(call({"parity", "--device", "h200"}).code, kMachine);
  // Nothing ran: that is not "nothing failed".
  const Answer none = call({"parity", "--backend", "cpu_forward", "--case", "backward f32 b1 h1 q1 k1 d8 full"});
  EXPECT_EQ(none.code, kFailed);
  EXPECT_EQ(none.last_line(), "0 passed, 0 failed");
  EXPECT_NE(none.err.find("no backend ran: cpu_forward: computes a forward, not a backward"), std::string::npos)
      << none.err;
  const Answer all = call({"parity", "--case", "forward f64 b1 h1 q1 k1 d8 full"});
  EXPECT_EQ(all.code, kFailed) << "this test needs a case that no backend supports";
  EXPECT_NE(all.err.find("no backend ran\n"), std::string::npos) << all.err;
}

TEST(parity, ranks_are_compared_with_the_whole) {
  const Answer a = call({"parity", "--ring", "--ranks", "1,3", "--case", "backward f32 b1 h6/3 q20 k20 d16 causal"});
  EXPECT_EQ(a.code, kOk) << a.out << a.err;
  EXPECT_EQ(a.last_line(), "8 passed, 0 failed");  // four layouts
  const Answer one =
      call({"parity", "--ring", "--ranks", "2", "--json", "--case", "forward f32 b1 h3 q20 k20 d16 full"});
  const json j = json::parse(one.out);
  EXPECT_EQ(j["passed"], 3);  // two ranks cannot divide three heads
  EXPECT_GT(j["runs"][0]["bytes_sent"], 0);
  EXPECT_EQ(call({"parity", "--ranks", "2"}).code, kUsage);
  EXPECT_EQ(call({"parity", "--ring", "--device", "h200"}).code, kMachine);
  EXPECT_EQ(call({"parity", "--ring", "--case", "forward f32 b1 h3 q20 k21 d16 full"}).code, kUsage);
}

TEST(parity, levels_are_those_of_this_cpu_and_one_with_many_threads) {
  const Answer a = call({"parity", "--levels", "--json", "--case", kCase, "--backend", "cpu_forward"});
  EXPECT_EQ(a.code, kOk) << a.err;
  const json runs = json::parse(a.out)["runs"];
  const std::vector<Place> levels = cpu_places();
  ASSERT_EQ(runs.size(), levels.size() + 1);
  for (size_t n = 0; n < levels.size(); ++n) EXPECT_EQ(runs[n]["device"], levels[n].word);
  EXPECT_EQ(runs.back()["device"], "cpu");
  EXPECT_EQ(runs.back()["threads"], 7);
  EXPECT_FALSE(runs[0].contains("threads"));
  EXPECT_EQ(call({"parity", "--levels", "--device", "cpu:scalar"}).code, kUsage);
  EXPECT_EQ(call({"parity", "--levels", "--threads", "2"}).code, kUsage);
}

// For a backend with few cases; ./test checks the coverage of all of them.
TEST(parity, coverage_has_a_number_or_a_sentence_in_every_cell) {
  const Answer a = call({"parity", "--backend", "cpu_compress", "--levels", "--coverage", "--json"});
  EXPECT_EQ(a.code, kOk) << a.err;
  const json j = json::parse(a.out);
  EXPECT_EQ(j["empty_cells"], 0);
  EXPECT_GE(j["coverage"].size(), 300 * (cpu_places().size() + 1));
  std::set<std::string> with_runs;
  for (const json& cell : j["coverage"]) {
    EXPECT_TRUE(cell["runs"] > 0 || cell.contains("refusal")) << cell;
    if (cell["runs"] > 0) with_runs.insert(cell["device"]);
  }
  EXPECT_EQ(with_runs.size(), cpu_places().size());
}

TEST(parity, a_hunt_ends_with_the_plain_line_and_names_its_seed) {
  const Answer a = call({"parity", "--hunt", "6", "--seed", "9", "--threads", "1"});
  EXPECT_EQ(a.code, kOk) << a.out << a.err;
  EXPECT_NE(a.out.find("6 problems of seed 9 on "), std::string::npos) << a.out;
  EXPECT_TRUE(a.last_line().ends_with(" passed, 0 failed")) << a.out;
  EXPECT_FALSE(a.last_line().starts_with("0 ")) << a.out;
  const json j = json::parse(call({"parity", "--hunt", "3", "--seed", "9", "--json"}).out);
  EXPECT_EQ(j["seed"], 9);
  EXPECT_EQ(j["cases"], 3);
  EXPECT_EQ(j["failed"], 0);
  EXPECT_GT(j["passed"], 0);
  EXPECT_TRUE(j.contains("empty"));
}

TEST(parity, a_hunt_draws_the_kinds_that_are_asked_for) {
  const Answer a = call({"parity", "--hunt", "8", "--seed", "5", "--threads", "1", "--kinds", "nsa,dilated", "--json"});
  EXPECT_EQ(a.code, kOk) << a.out << a.err;
  for (const json& b : json::parse(a.out)["backends"])
    EXPECT_NE(b["backend"], "cpu_forward");
  EXPECT_EQ(call({"parity", "--hunt", "8", "--kinds", "toaster"}).code, kUsage);
  EXPECT_EQ(call({"parity", "--kinds", "nsa"}).code, kUsage);
}

TEST(parity, a_hunt_that_cannot_be_is_a_sentence) {
  EXPECT_EQ(call({"parity", "--hunt", "0"}).code, kUsage);
  EXPECT_EQ(call({"parity", "--seed", "3"}).code, kUsage);  // without anything to seed
  EXPECT_EQ(call({"parity", "--hunt", "2", "--quick"}).code, kUsage);
  const Answer backend = call({"parity", "--hunt", "2", "--backend", "nobody"});
  EXPECT_EQ(backend.code, kUsage);
  EXPECT_NE(backend.err.find("backend 'nobody' is not one of "), std::string::npos) << backend.err;
  const Answer device = call({"parity", "--hunt", "2", "--device", "toaster"});
  EXPECT_EQ(device.code, kUsage);
  EXPECT_NE(device.err.find("attune parity: "), std::string::npos) << device.err;
}

TEST(features, come_from_supports) {
  const json j = json::parse(call({"features", "--device", "cpu", "--json"}).out);
  int served = 0;
  for (const json& cell : j["devices"][0]["cells"]) {
    served += cell["served"] == true;
    EXPECT_EQ(cell["served"] == false, cell.contains("refusal")) << cell;
  }
  EXPECT_GE(served, 50);
  EXPECT_EQ(call({"features", "--device", "toaster"}).code, kUsage);
  const Answer table = call({"features"});
  EXPECT_EQ(table.code, kOk);
  for (const Backend* b : backends()) EXPECT_NE(table.out.find(b->name), std::string::npos) << b->name;
}

// Without GPU code the table of an H200 is nearly empty, which is not a gap in the library.
TEST(features, of_a_gpu_say_whether_the_build_has_code_for_one) {
  const bool none = cuda::built_for().empty();
  const char* said = "h200 (NVIDIA H200)\n  this build has no GPU code, so GPU backends are missing here\n";
  EXPECT_EQ(call({"features", "--device", "h200"}).out.starts_with(said), none);
  EXPECT_EQ(call({"features", "--device", "cpu"}).out.find("GPU code"), std::string::npos);
  EXPECT_EQ(json::parse(call({"features", "--device", "h200", "--json"}).out)["devices"][0]["gpu_code"],
            std::string(cuda::built_for()));
}

}  // namespace
}  // namespace attune
