// SPDX-License-Identifier: Apache-2.0
// The command line from outside: exit codes, messages, JSON; and docs/cli.md agrees with --help.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "machine/host.h"
#include "plan/rules.h"
#include "tests/tool/spawn.h"
#include "tool/commands/commands.h"
#include "tool/line.h"

namespace attune {
namespace {

using nlohmann::json;
constexpr const char* kLine = "forward f32 b1 h8 q1024 k1024 d64 causal";
constexpr const char* kDouble = "forward f64 b1 h8 q1024 k1024 d64 causal";
constexpr const char* kNobody = "forward f32 b1 h8 q1024 k1024 d64 causal : no_such_variant";

bool one_sentence(const std::string& err) { return !err.empty() && err.find('\n') == err.size() - 1; }

struct Whole {  // the command line, in this process
  Context context{};
  CLI::App app{};
  Whole() { add_commands(app, context); }
  std::vector<CLI::App*> commands() { return app.get_subcommands([](CLI::App*) { return true; }); }
};

TEST(Cli, no_command_is_wrong_usage) {
  const Ran r = attune_says({});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(one_sentence(r.err)) << r.err;
  EXPECT_TRUE(has(r.err, "no command given; the commands are doctor, plan")) << r.err;
}

TEST(Cli, unknown_command_is_named) {
  const Ran r = attune_says({"dcotor"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "'dcotor' is not a command; the commands are doctor, ")) << r.err;
  EXPECT_TRUE(has(r.err, "; did you mean doctor? See attune --help\n")) << r.err;
  EXPECT_FALSE(has(attune_says({"xyzzy"}).err, "did you mean"));
  EXPECT_EQ(r.out, "");
}

TEST(Cli, unknown_option_is_named_even_where_something_is_missing) {
  for (const auto& words : {std::vector<std::string>{"plan", "--devcie", "cpu"}, {"plan", kLine, "--devcie"}}) {
    const Ran r = attune_says(words);
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(one_sentence(r.err)) << r.err;
    EXPECT_TRUE(has(r.err, "attune plan: '--devcie' is not an option; did you mean --device? See attune plan --help"))
        << r.err;
  }
}

TEST(Cli, a_full_disk_and_a_size_limit_are_one_sentence_each) {
  const std::string records = temporary("limited.jsonl"), page = temporary("limited.html");
  std::filesystem::remove(records);
  std::vector<std::string> bench = {"bench", "--json", "--max-seconds", "0.01", "--backend", "all", "--out", records};
  for (int n = 8; n < 40; n += 2) bench.push_back(join("forward f32 b1 h1 q", n, " k", n, " d8 causal"));
  ASSERT_EQ(attune_says(bench).code, 0);
  const std::string attune = ATTUNE_BUILD_DIR "/attune";
  for (const char* const words : {"report limited.jsonl", "bench --help", "plan --help", "--version"}) {
    const Ran r = spawn({"sh", "-c", join("cd ", temporary(""), " && ", attune, " ", words, " > /dev/full")});
    EXPECT_EQ(r.code, 3) << words;
    EXPECT_EQ(r.err, "attune: stdout cannot be written\n") << words;
  }
  const std::string before = text_of(records);
  const std::string line = "'forward f32 b1 h1 q8 k8 d8 full'";
  for (const std::string& words : {join("report ", records, " --out ", page),
                                   join("bench ", line, " --max-seconds 0.01 --out ", records)}) {
    const Ran r = spawn({"sh", "-c", join("ulimit -f 1; ", attune, " ", words)});
    EXPECT_EQ(r.code, 3) << words << r.err;
    EXPECT_TRUE(has(r.err, "File too large\n")) << r.err;
  }
  EXPECT_EQ(text_of(records).substr(0, before.size()), before) << "nothing is lost";
  EXPECT_FALSE(std::filesystem::exists(page));
}

TEST(Cli, what_an_option_does_not_take_is_said_in_our_words) {
  const std::string seed = "is not a whole number from 0 to 4294967295; see";
  for (const auto& [words, told] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"bench", kLine, "--seed", "-1"}, "--seed: '-1' " + seed},
           {{"bench", kLine, "--seed", "99999999999"}, "--seed: '99999999999' " + seed},
           {{"bench", kLine, "--samples", "x"}, "--samples: 'x' is not a whole number from 1 to 1000000; see"},
           {{"bench", kLine, "--device", "cpu", "--device", "cpu"},
            "--device: given 2 times; it is accepted once; see"},
           {{"bench", kLine, "--precision"}, "--precision: its value is missing: SHARE; see"},
           {{"bench", kLine, "--max-seconds", "foo"}, "--max-seconds: 'foo' is not a number; see"},
           {{"tune", "a", "--buckets", "1.5"},
            "--buckets: '1.5' is not a whole number from -2147483648 to 2147483647; see"},
           {{"serve", "a", "--port", "99999"}, "--port: '99999' is not a whole number from 0 to 65535; see"},
           {{"parity", "--ranks", "2,x", "--ring"}, "--ranks: 'x' is not a whole number from 1 to 64; see"},
           {{"bench", kLine, "--warm=maybe"}, "--warm: 'maybe' is not true or false; see"},
           {{"compare", "a", "b", "--bar", "50"}, "--bar: given without --agree, which it needs; see"},
           {{"parity", "--levels", "--threads", "2"},
            "--threads: given with --levels; only one of them is accepted; see"},
           {{"cost", "a", "--prices", "b", "--seconds", "0"},
            "--seconds: '0' is not a number from 0.001 to 1e+09; see"},
           {{"compare", "a", "b", "--sort", "ratoi"},
            "--sort: 'ratoi' is not one of weight, ratio, problem; did you mean 'ratio'? See"}}) {
    const Ran r = attune_says(words);
    EXPECT_EQ(r.code, 2) << told;
    EXPECT_EQ(r.err, join("attune ", words[0], ": ", told, " attune ", words[0], " --help\n"));
  }
}

TEST(Cli, a_list_of_commas_is_no_value) {
  for (const auto& words : {std::vector<std::string>{"--backend", ","}, {"--backend=,"}, {"--peer", ",,"}}) {
    std::vector<std::string> all = {"bench", kLine};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"--max-seconds", "0.01"});
    const Ran r = attune_says(all);
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(has(r.err, join("'", words[0], words.size() > 1 ? " " + words[1] : "", "' has no value"))) << r.err;
  }
}

TEST(Cli, what_follows_version_or_help_is_refused_unless_it_is_a_command) {
  for (const char* const first : {"version", "--version", "-V", "-h"}) {
    const Ran r = attune_says({first, "extra"});
    EXPECT_EQ(r.code, 2) << first;
    EXPECT_EQ(r.err, "attune: 'extra' is an unexpected argument; see attune --help\n");
    EXPECT_EQ(r.out, "");
  }
  EXPECT_EQ(attune_says({"help", "plan", "bench"}).code, 2);
  EXPECT_EQ(attune_says({"--help", "plan"}).out, attune_says({"plan", "--help"}).out);
}

TEST(Cli, a_base_that_nothing_is_or_computes_is_named) {
  const Ran r = attune_says({"bench", kLine, "--base", "nope", "--max-seconds", "0.01"});
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.err, "attune bench: --base: 'nope' is not one of dense\n");
  EXPECT_EQ(r.out, "");
  const Ran other = attune_says({"bench", "forward f32 b1 h1 q8 k8 d8 full", "--base", "cpu_standard", "--max-seconds",
                                 "0.01"});
  EXPECT_EQ(other.code, 0);
  EXPECT_TRUE(has(other.err, "warning: --base: 'cpu_standard' is not one of cpu_forward, dense; ")) << other.err;
}

TEST(Cli, the_backend_of_the_environment_is_obeyed_and_named_as_in_the_library) {
  const std::vector<std::string> standard = {"ATTUNE_BACKEND=cpu_standard"}, nobody = {"ATTUNE_BACKEND=nobody"};
  for (const char* const command : {"plan", "why"}) {
    const Ran r = attune_says({command, kLine, "--json"}, standard);
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(json::parse(r.out)["backend"], "cpu_standard");
    EXPECT_EQ(json::parse(r.out)["why"], "selected by ATTUNE_BACKEND");
  }
  EXPECT_EQ(json::parse(attune_says({"memory", kLine, "--json"}, standard).out)["backend"], "cpu_standard");
  const Ran named = attune_says({"plan", kLine, "--backend", "cpu_forward", "--json"}, nobody);
  EXPECT_EQ(json::parse(named.out)["why"], "selected by name") << "the option wins";
  const Ran b =
      attune_says({"bench", "forward f32 b1 h1 q16 k16 d16 full", "--json", "--max-seconds", "0.02"}, standard);
  ASSERT_EQ(b.code, 0) << b.err;
  EXPECT_EQ(json::parse(b.out)["subject"], "cpu_standard");
  EXPECT_TRUE(has(b.err, "ATTUNE_BACKEND: cpu_standard is measured, not the planner's choice\n")) << b.err;
  for (const char* const command : {"plan", "why", "memory", "bench"}) {
    const Ran r = attune_says({command, kLine}, nobody);
    EXPECT_EQ(r.code, 2) << command;
    EXPECT_TRUE(one_sentence(r.err)) << r.err;
    EXPECT_TRUE(has(r.err, "ATTUNE_BACKEND: 'nobody' is not one of cpu_forward, ")) << r.err;
    EXPECT_EQ(r.out, "");
  }
}

TEST(Cli, an_option_takes_neither_the_next_word_nor_the_next_option_for_its_value) {
  const std::string records = temporary("records.jsonl");
  std::ofstream(records) << "mine\n";
  for (const auto& words : {std::vector<std::string>{"report", "--out=", records, "other.jsonl"},
                            {"report", records, "--csv", "--json"}, {"store", records, "--db=", "--json"}}) {
    const Ran r = attune_says(words);
    EXPECT_EQ(r.code, 2) << words[1];
    EXPECT_TRUE(one_sentence(r.err)) << r.err;
    EXPECT_TRUE(has(r.err, "' has no value") || has(r.err, "'--json' is an option, not a value")) << r.err;
    EXPECT_EQ(text_of(records), "mine\n");
  }
}

TEST(Cli, one_argument_too_many_is_named) {
  const Ran r = attune_says({"doctor", "please"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "'please' is an unexpected argument")) << r.err;
}

TEST(Cli, missing_argument_is_named) {
  const Ran r = attune_says({"plan"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "problem is required")) << r.err;
}

TEST(Cli, a_number_is_in_its_range_and_nan_is_in_none) {
  for (const char* number : {"nan", "-1", "1001", "two"})
    for (const auto& words : {std::vector<std::string>{"compare", "a", "b", "--margin", number},
                              {"compare", "a", "b", "--agree", number}, {"tune", "a", "--margin", number}}) {
      const Ran r = attune_says(words);
      EXPECT_EQ(r.code, 2);
      EXPECT_TRUE(has(r.err, join("'", number, "' is not a number from 0 to 1000; see attune"))) << r.err;
    }
}

TEST(Cli, a_wrong_value_is_named_also_in_front_of_two_dashes) {
  const Ran r = attune_says({"remote", "run", "--max-usd", "nan", "--", "bench"});
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.err, "attune remote: --max-usd: 'nan' is not a number from 0.01 to 1e+06; see attune remote --help\n");
}

TEST(Cli, an_empty_word_is_not_an_option_that_was_not_given) {
  for (const auto& words : {std::vector<std::string>{"bench", "--suite", "", "--dry-run"},
                            {"bench", "--out", "", "--dry-run"}, {"compare", "a", "--baseline", ""}}) {
    const Ran r = attune_says(words);
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(has(r.err, ": the value is empty; see attune " + words[0] + " --help")) << r.err;
  }
  EXPECT_EQ(attune_says({"bench", "--options", "", "--len", "16", "--dry-run"}).code, 0);
}

TEST(Cli, an_option_of_another_needs_it) {
  for (const auto& words : {std::vector<std::string>{"compare", "a", "b", "--bar", "50"}, {"tune", "a", "--bar", "50"},
                            {"tune", "a", "--once"}}) {
    const Ran r = attune_says(words);
    EXPECT_EQ(r.code, 2);
    EXPECT_TRUE(has(r.err, ": given without --") && has(r.err, ", which it needs; see")) << r.err;
  }
}

// An absent device is an error of the machine, not of the command line: the same line is valid elsewhere.
TEST(Cli, a_device_that_is_not_here_is_told_from_one_that_is_none) {
  const std::vector<std::vector<std::string>> commands = {
      {"plan", kLine}, {"memory", kLine}, {"why", kLine}, {"features"}, {"parity"}, {"parity", "--ring"},
      {"bench", kLine}};
  for (const std::string word : {"cuda:987654", "cpu:avx512", "cpu:neon", "cuda:x", "cuda:-1", "h2000", "cpu:sve9"}) {
    const bool is_name = word == "cuda:987654" || word == "cpu:avx512" || word == "cpu:neon";
    if (Device here; device_named(word, here).ok()) continue;
    for (std::vector<std::string> words : commands) {
      words.insert(words.end(), {"--device", word});
      const Ran r = attune_says(words);
      EXPECT_EQ(r.code, is_name ? 3 : 2) << words[0] << " " << word;
      EXPECT_TRUE(r.err.starts_with(join("attune ", words[0], ": device '", word, "'"))) << r.err;
      EXPECT_TRUE(one_sentence(r.err)) << r.err;
    }
  }
  for (const char* command : {"bench", "parity"}) {
    std::vector<std::string> words{command, "--device", "h200"};
    EXPECT_EQ(attune_says(words).code, 3) << command;
  }
}

TEST(Cli, version_is_said) {
  const Ran r = attune_says({"--version"});
  EXPECT_EQ(r.code, 0);
  EXPECT_TRUE(std::regex_match(r.out, std::regex("attune [0-9]+\\.[0-9]+\\.[0-9]+\n"))) << r.out;
}

TEST(Cli, help_of_every_command_has_an_example_and_json) {
  Whole whole;
  EXPECT_GE(whole.commands().size(), 7u);
  for (const CLI::App* sub : whole.commands()) {
    const Ran r = attune_says({sub->get_name(), "--help"});
    EXPECT_EQ(r.code, 0) << sub->get_name();
    EXPECT_EQ(r.err, "");
    EXPECT_TRUE(has(r.out, "--json")) << sub->get_name();
    EXPECT_TRUE(has(r.out, "attune " + sub->get_name())) << sub->get_name();
    EXPECT_TRUE(has(r.out, "Example")) << sub->get_name();
  }
}

TEST(Cli, full_disk_is_the_machines_fault) {
  if (access("/dev/full", W_OK)) GTEST_SKIP() << "no /dev/full here";
  const Ran r = spawn({ATTUNE_BUILD_DIR "/attune", "plan", kLine}, {}, "/dev/full");
  EXPECT_EQ(r.code, 3);
  EXPECT_TRUE(has(r.err, "stdout cannot be written")) << r.err;
}

TEST(Plan, says_backend_why_shape_and_cost) {
  const Ran r = attune_says({"plan", kLine});
  EXPECT_EQ(r.code, 0) << r.err;
  for (const char* word : {"cpu_forward", "why", "tiles of", "workspace", "FLOP over", "at least"})
    EXPECT_TRUE(has(r.out, word)) << word << "\n" << r.out;
}

TEST(Plan, json_has_what_the_text_has) {
  const Ran r = attune_says({"plan", kLine, "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["problem"], kLine);
  EXPECT_EQ(j["backend"], "cpu_forward");
  EXPECT_FALSE(j["isa"].get<std::string>().empty());
  EXPECT_EQ(j["cost"]["pairs"], 8 * 1024 * 1025 / 2);
  EXPECT_EQ(j["cost"]["flops"], 4.0 * 64 * 8 * 1024 * 1025 / 2);
  EXPECT_GT(j["tile_q"], 0);
  EXPECT_GE(j["workspace_bytes"], 0);
  EXPECT_TRUE(j["refused"].is_array());
  EXPECT_EQ(j["choice"], "") << "a CPU backend describes no choice";
}

TEST(Plan, refusals_before_the_chosen_one_are_listed_if_they_say_something_of_the_problem) {
  const Ran r = attune_says({"plan", "forward f32 b1 h8 q64 k64 d7 causal", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["backend"], "cpu_standard");
  EXPECT_EQ(j["refused"].dump(), R"(["cpu_forward: dim 7 is not a multiple of 8 up to 256"])");
}

TEST(Plan, the_links_for_calls_whose_arguments_do_not_fit_are_named) {
  EXPECT_EQ(json::parse(attune_says({"plan", kLine, "--json"}).out)["otherwise"], "") << "a CPU takes every call";
  const char* line = "forward bf16 b2 h8 q128 k128 d64 causal";
  const Ran r = attune_says({"plan", line, "--device", "h200", "--json"});
  if (r.code) GTEST_SKIP() << "this build has no GPU code";
  EXPECT_TRUE(has(json::parse(r.out)["otherwise"], "cuda_standard")) << r.out;
  EXPECT_TRUE(has(attune_says({"plan", line, "--device", "h200"}).out, "if the arguments of a call do not fit"));
  const Ran forced = attune_says({"plan", line, "--device", "h200", "--json", "--backend", "vendor_cudnn"});
  EXPECT_EQ(json::parse(forced.out)["otherwise"], "");
}

TEST(Plan, device_restricts_the_instructions) {
  const Ran r = attune_says({"plan", kLine, "--device", "cpu:scalar", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json::parse(r.out)["isa"], "scalar");
}

TEST(Cli, a_name_that_is_nearly_right_is_suggested) {
  const std::pair<std::vector<std::string>, const char*> kNear[] = {
      {{"bench", "--suite", "decod", "--dry-run"}, "; did you mean 'decode'?"},
      {{"bench", "--backend", "cpu_foward", "--len", "16"}, "; did you mean 'cpu_forward'?"},
      {{"bench", "--peer", "tourch", "--len", "16"}, "; did you mean 'torch'?"},
      {{"bench", "--pass", "forwards", "forward f32 b1 h1 q8 k8 d64 full"}, "; did you mean 'forward'?"},
      {{"parity", "--backend", "cpu_foward"}, "; did you mean 'cpu_forward'?"},
      {{"plan", "forward f32 b1 h1 q8 k8 d64 full", "--backend", "cpu_foward"}, "; did you mean 'cpu_forward'?"}};
  for (const auto& [words, suggestion] : kNear) {
    const Ran r = attune_says(words);
    EXPECT_EQ(r.code, 2) << r.err;
    EXPECT_TRUE(has(r.err, suggestion)) << r.err;
  }
}

TEST(Cli, a_dash_is_stdin_and_stdout) {
  const std::string records = temporary("dash.jsonl"), command = ATTUNE_BUILD_DIR "/attune";
  ASSERT_EQ(attune_says({"bench", "--len", "16", "--samples", "6", "--warm-up", "1", "--out", records}).code, 0);
  const auto shell = [](const std::string& line) { return spawn({"sh", "-c", line}); };
  EXPECT_EQ(shell("cat " + records + " | " + command + " verify -").code, 0);
  EXPECT_EQ(shell(command + " verify - < " + records).code, 0);
  const Ran csv = shell("cat " + records + " | " + command + " report - --csv - | head -1");
  EXPECT_TRUE(has(csv.out, "problem")) << csv.out << csv.err;
  const Ran empty = shell(command + " verify - < /dev/null");
  EXPECT_NE(empty.code, 0) << empty.out;
  const std::string folder = temporary("dash"), before = text_of(records);
  std::filesystem::create_directory(folder);
  const Ran joined = shell("cd " + folder + " && " + command + " report " + records + " --csv=- | head -1");
  EXPECT_TRUE(has(joined.out, "problem")) << joined.out << joined.err;
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "no file of this name";
  // What stdin comes from is never written.
  const std::string store = temporary("dash.db");
  ASSERT_EQ(attune_says({"store", records, "--db", store}).code, 0);
  const Ran redirected = shell(command + " report " + records + " --csv - > " + store + ".csv");
  EXPECT_TRUE(text_of(store + ".csv").starts_with("time,problem,")) << text_of(store + ".csv").substr(0, 80);
  EXPECT_TRUE(has(redirected.err, "wrote /dev/stdout")) << redirected.err;
  const std::string own = temporary("own.jsonl");
  EXPECT_EQ(shell(command + " bench --len 16 --samples 6 --warm-up 1 --out - > " + own).code, 0);
  EXPECT_EQ(attune_says({"verify", own}).code, 0) << text_of(own);
  const Ran page = shell(command + " history --db " + store + " --html - < " + records);
  EXPECT_TRUE(page.out.starts_with("<!")) << page.out.substr(0, 80) << page.err;
  EXPECT_TRUE(text_of(records) == before) << "stdin was overwritten";
}

TEST(Cli, help_and_version_are_commands_too) {
  EXPECT_EQ(attune_says({"help"}).out, attune_says({"--help"}).out);
  EXPECT_EQ(attune_says({"version"}).out, attune_says({"--version"}).out);
  const Ran r = attune_says({"help", "plan"});
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.out, attune_says({"plan", "--help"}).out);
  EXPECT_EQ(attune_says({"help", "paln"}).code, 2);
}

TEST(Plan, nothing_supports_it_is_a_failure_with_the_reasons_of_this_problem) {
  const Ran text = attune_says({"plan", kDouble});
  EXPECT_EQ(text.code, 1);
  EXPECT_EQ(text.out, "");
  EXPECT_TRUE(has(text.err, "no backend supports: " + std::string(kDouble))) << text.err;
  EXPECT_TRUE(has(text.err, "\n  cpu_forward: dtype f64 is not one of ")) << text.err;
  EXPECT_TRUE(has(text.err, "\n  cpu_standard: ")) << text.err;
  for (const char* other : {"cpu_backward: ", "nsa: ", "dilated: ", "cpu_gate: "})
    EXPECT_FALSE(has(text.err, other)) << "backends of another pass or variant say nothing about it: " << text.err;
  const Ran r = attune_says({"plan", kDouble, "--json"});
  EXPECT_EQ(r.code, 1);
  const json j = json::parse(r.out);
  EXPECT_TRUE(j["backend"].is_null());
  EXPECT_TRUE(has(j["error"], "no backend supports"));
  EXPECT_EQ(j["refused"].size(), 2u);
}

TEST(Plan, unknown_variant_is_the_only_reason) {
  const Ran r = attune_says({"plan", kNobody});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "\n  'no_such_variant' is not a variant; accepted are compress, ")) << r.err;
  EXPECT_FALSE(has(r.err, "cpu_forward: ")) << r.err;
  const Ran near = attune_says({"plan", "forward f32 b1 h8 q64 k64 d64 causal : dilate"});
  EXPECT_TRUE(has(near.err, "did you mean 'dilated'?")) << near.err;
}

TEST(Plan, quotes_are_optional_and_a_mistake_has_a_caret) {
  EXPECT_EQ(attune_says({"plan", "forward", "f32", "b1", "h8", "q1024", "k1024", "causal", "d64"}).out,
            attune_says({"plan", kLine}).out);
  const Ran r = attune_says({"plan", "forward", "f32", "b1", "h8", "q1", "k1", "d64", "casual"});
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.err,
            "attune plan: problem line: 'casual' is not a word of a problem line; did you mean 'causal'? "
            "See attune plan --help\n"
            "  forward f32 b1 h8 q1 k1 d64 casual\n"
            "                              ^~~~~~\n");
  const Ran columns = attune_says({"plan", "forward", "f32", "b1", "h8", "\u00fc\u6ce8", "k1", "\u00e4\u00e4\u00e4"});
  EXPECT_TRUE(has(columns.err, "\n  forward f32 b1 h8 \u00fc\u6ce8 k1 \u00e4\u00e4\u00e4\n"
                               "                    ^~~\n")) << columns.err;
  const Ran short_line = attune_says({"why", "forward f32 b1 h8 q1 k1 d64"});
  EXPECT_TRUE(has(short_line.err, "d64\n                              ^\n")) << short_line.err;
  const Ran escape = attune_says({"plan", "forward f32 b1 h8 q1 k1 d64 \x1b[31m"});
  EXPECT_FALSE(has(escape.err, "\n  forward")) << "a line with control characters is not repeated";
}

TEST(Lines, words_without_quotes_are_joined_from_pass_to_pass) {
  const auto lines = lines_of({"forward", "f32", "b1", "backward", "f32", "b2"});
  EXPECT_EQ(lines, (std::vector<std::string>{"forward f32 b1", "backward f32 b2"}));
  EXPECT_EQ(lines_of({kLine, kNobody}), (std::vector<std::string>{kLine, kNobody}));
  EXPECT_EQ(lines_of({"forward", "f32", kLine, "x"}), (std::vector<std::string>{"forward f32", kLine, "x"}));
}

TEST(Plan, forced_backend_that_refuses_is_a_failure) {
  const Ran r = attune_says({"plan", kLine, "--backend", "cpu_forward", "--device", "h200"});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "cpu_forward: ")) << r.err;
  EXPECT_TRUE(has(r.err, "NVIDIA H200")) << r.err;
}

TEST(Plan, words_that_name_nothing_are_wrong_usage) {
  const Ran line = attune_says({"plan", "forward f32 b1 h8 q1024"});
  EXPECT_EQ(line.code, 2);
  EXPECT_TRUE(has(line.err, "attune plan: problem line: ")) << line.err;
  const Ran device = attune_says({"plan", kLine, "--device", "h2000"});
  EXPECT_EQ(device.code, 2);
  EXPECT_TRUE(has(device.err, "attune plan: device 'h2000' is unknown; accepted: cpu")) << device.err;
  const Ran backend = attune_says({"plan", kLine, "--backend", "cpu_fwd"});
  EXPECT_EQ(backend.code, 2);
  EXPECT_TRUE(has(backend.err, "backend 'cpu_fwd' is not one of ") && has(backend.err, "cpu_forward, ")) << backend.err;
}

TEST(Plan, tuned_rule_decides_and_is_named) {
  Tuned tuned{.device = this_cpu().name, .measured = "by this test", .rules = {Rule{.dtype = DType::f32}}};
  Rule& rule = tuned.rules[0];
  rule.dim_qk = rule.dim_v = 64, rule.mask = MaskKind::causal, rule.backend = "cpu_standard";
  std::ofstream(temporary("mine.tsv")) << write_tuned(tuned);
  const Ran r = attune_says({"plan", kLine, "--json"}, {"ATTUNE_TUNED=" + temporary("mine.tsv")});
  ASSERT_EQ(r.code, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_TRUE(has(j["why"].get<std::string>() + j["refused"].dump(), "mine.tsv:")) << r.out;
}

TEST(Plan, wrong_tuned_file_is_a_failure_that_names_it) {
  std::ofstream(temporary("wrong.tsv")) << "this is no tuned file\n";
  const Ran r = attune_says({"plan", kLine}, {"ATTUNE_TUNED=" + temporary("wrong.tsv")});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "wrong.tsv:1")) << r.err;
}

TEST(Doctor, json_says_machine_backends_and_rates) {
  const Ran r = attune_says({"doctor", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["machine"]["cpu"], this_cpu().name);
  EXPECT_EQ(j["machine"]["threads"], this_cpu().units);
  EXPECT_GT(j["machine"]["memory_bytes"], 1e8);
  EXPECT_TRUE(!j["machine"]["gpus"].empty() || !j["machine"]["no_gpu"].get<std::string>().empty());
  ASSERT_GE(j["backends"].size(), 4u);
  for (const json& backend : j["backends"]) {
    if (backend["name"] != "cpu_forward") continue;
    EXPECT_EQ(backend["answers"][0]["supported"], true);
    EXPECT_EQ(backend["answers"][1]["supported"], false);  // a backward
    EXPECT_TRUE(has(backend["answers"][1]["refusal"], "cpu_forward: "));
  }
  EXPECT_GT(j["rates"]["f32"]["gflops"], 0.1);
  EXPECT_GT(j["rates"]["copy_gbs"], 0.1);
  EXPECT_GT(j["steadiness"]["aa_spread"], 0);
  EXPECT_EQ(j["steadiness"]["error"], "");
}

TEST(Doctor, text_says_why_a_backend_is_out) {
  const Ran r = attune_says({"doctor", "--no-measure"});
  EXPECT_EQ(r.code, 0) << r.err;
  const std::string cpu = this_cpu().name;
  for (const std::string part :
       {cpu.c_str(), "computes a backward, not a forward", "GPU", "runs only by name", "Tuned rules"})
    EXPECT_TRUE(has(r.out, part)) << part << "\n" << r.out;
  EXPECT_FALSE(has(r.out, "A/A")) << r.out;
}

// The text of docs/cli.md under "## attune <command>".
std::string section(const std::string& page, const std::string& command) {
  const size_t at = page.find("\n## attune " + command + "\n");
  return at == page.npos ? "" : page.substr(at, page.find("\n## ", at + 4) - at);
}

// Every option stands in docs/cli_options.md, which scripts/cli_options.py writes and house_cli_options checks.
TEST(Docs, page_has_every_command_and_no_option_that_is_not_there) {
  const std::string page = text_of(ATTUNE_SOURCE_DIR "/docs/cli.md");
  Whole whole;
  for (const CLI::App* sub : whole.commands()) {
    const std::string text = section(page, sub->get_name());
    EXPECT_FALSE(text.empty()) << "docs/cli.md has no section '## attune " << sub->get_name() << "'";
    std::set<std::string> known;
    for (const CLI::Option* option : sub->get_options())
      for (const std::string& name : option->get_lnames()) known.insert("--" + name);
    const std::regex option("`(--[a-z-]+)");
    for (std::sregex_iterator it(text.begin(), text.end(), option), end; it != end; ++it)
      EXPECT_TRUE(known.count((*it)[1])) << "docs/cli.md: attune " << sub->get_name() << " has no " << (*it)[1];
  }
}

}  // namespace
}  // namespace attune
