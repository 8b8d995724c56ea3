// SPDX-License-Identifier: Apache-2.0
// The completion scripts: the shells accept them, and they offer every command and option.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "tests/tool/spawn.h"
#include "tool/commands/commands.h"

namespace attune {
namespace {

std::string script(const std::string& shell) {
  const Ran r = attune_says({"completion", shell});
  EXPECT_EQ(r.code, 0) << r.err;
  const std::string path = temporary("attune." + shell);
  std::ofstream(path) << r.out;
  return path;
}

void expect_everything(const std::string& shell) {
  const std::string text = text_of(script(shell));
  Context context;
  CLI::App app;
  add_commands(app, context);
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    EXPECT_TRUE(has(text, sub->get_name())) << shell;
    for (const CLI::Option* option : sub->get_options())
      for (const std::string& name : option->get_lnames())
        EXPECT_TRUE(has(text, (shell == "fish" ? "-l " : "--") + name))
            << shell << " " << sub->get_name() << " " << name;
  }
}

bool missing(const char* shell) { return spawn({shell, "--version"}).code == 127; }

// The offers of bash after these words, the last one incomplete.
std::string offered(const std::vector<std::string>& words) {
  std::string code = "source " + script("bash") + "; COMP_WORDS=(";
  for (const std::string& w : words) code += "'" + w + "' ";
  code += ") COMP_CWORD=" + std::to_string(words.size() - 1) + "; _attune; echo \"${COMPREPLY[*]}\"";
  const Ran r = spawn({"bash", "-c", code});
  EXPECT_EQ(r.code, 0) << r.err;
  return r.out;
}

TEST(Completion, bash_accepts_it) {
  const Ran r = spawn({"bash", "-n", script("bash")});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.err, "");
  expect_everything("bash");
}

TEST(Completion, zsh_accepts_it) {
  expect_everything("zsh");
  if (missing("zsh")) GTEST_SKIP() << "no zsh here";
  const Ran r = spawn({"zsh", "-n", script("zsh")});
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST(Completion, fish_accepts_it) {
  expect_everything("fish");
  if (missing("fish")) GTEST_SKIP() << "no fish here";
  const Ran r = spawn({"fish", "-n", script("fish")});
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST(Completion, bash_offers_commands_then_options_then_values) {
  EXPECT_EQ(offered({"attune", "doc"}), "doctor\n");
  EXPECT_TRUE(has(offered({"attune", ""}), "plan"));
  EXPECT_EQ(offered({"attune", "plan", "--dev"}), "--device\n");
  EXPECT_EQ(offered({"attune", "plan", "--device", "h20"}), "h20 h200\n");
  EXPECT_EQ(offered({"attune", "plan", "--backend", "cpu_b"}), "cpu_backward\n");
  EXPECT_EQ(offered({"attune", "completion", "z"}), "zsh\n");
  EXPECT_EQ(offered({"attune", "report", "--out", "x"}), "\n");  // a file name: left to bash
  EXPECT_EQ(offered({"attune", "doctor", "--dev"}), "\n");       // not an option of doctor
}

TEST(Completion, other_shells_are_wrong_usage) {
  const Ran r = attune_says({"completion", "tcsh"});
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "tcsh")) << r.err;
}

TEST(Completion, json_carries_the_same_script) {
  const Ran r = attune_says({"completion", "bash", "--json"});
  ASSERT_EQ(r.code, 0);
  EXPECT_EQ(nlohmann::json::parse(r.out)["script"], text_of(script("bash")));
}

}  // namespace
}  // namespace attune
