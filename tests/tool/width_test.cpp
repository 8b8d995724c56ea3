// SPDX-License-Identifier: Apache-2.0
// Every command in a real pseudo-terminal: no line is wider than the terminal, and nothing is lost.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "tests/tool/spawn.h"
#include "tool/record/record.h"
#include "tool/table.h"

namespace attune {
namespace {

// What a program writes to a terminal of this width, without escape sequences; a carriage return begins a line.
std::vector<std::string> on_terminal(const std::vector<std::string>& words, int width) {
  winsize size{.ws_row = 40, .ws_col = (unsigned short)(width), .ws_xpixel = 0, .ws_ypixel = 0};
  int fd = -1;
  const pid_t child = forkpty(&fd, nullptr, nullptr, &size);
  if (child == 0) {
    std::vector<char*> argv;
    for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  std::string all;
  char part[4096];
  for (ssize_t n; (n = read(fd, part, sizeof(part))) > 0;) all.append(part, size_t(n));
  close(fd);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 126) << words[1];
  std::vector<std::string> lines(1);
  for (size_t n = 0; n < all.size(); ++n) {
    if (all[n] == '\x1b') n = std::min(all.find_first_of("mK", n), all.size());
    else if (all[n] == '\r' && n + 1 < all.size() && all[n + 1] == '\n') continue;
    else if (all[n] == '\n' || all[n] == '\r') lines.emplace_back();
    else lines.back() += all[n];
  }
  return lines;
}

struct Files { std::string records, prices, store, bars; };

std::vector<std::vector<std::string>> commands(const Files& files) {
  const auto& [records, prices, store, bars] = files;
  const std::string line = "forward bf16 b2 h32/8 q4096 k4096 d128 causal";
  return {{"doctor", "--no-measure"},
          {"plan", line},
          {"plan", "forward bf16 b2 h32/8 q4096 k4096 d129 casual softcap alibi sink paged64 repro=run precision=tf32"},
          {"plan", line, "--backend", "masked_dense"},
          {"features"},
          {"features", "--all", "--device", "cpu"},
          {"memory", line},
          {"memory", "--device", "cpu"},
          {"memory", "forward bf16 b1 h8 q4096 k4096 d64 causal : ring layout=zigzag ranks=4 tokens=16384"},
          {"memory", "forward f32 b1 h1 q64 k64 d64 causal", "--measure"},
          {"memory", "lama bf16 b1 s4096 e4096 h32/8 ffn=14336 | causal"},
          {"memory", "llama bf16 b1 s4096 e4096 h32/8 ffn=14336 | causal"},
          {"model", "llama-3-8b", "--memory"},
          {"model", "llama-3-8b", "--fits", "24,40,48,80,141"},
          {"model", "gpt22"},
          {"parity", "--case", "forward f32 b1 h1 q33 k65 d64 causal"},
          {"parity", "--backend", "cpu_gate"},
          {"parity", "--backend", "cpu_standard", "forward f32 b1 h1 q33 k65 d64 causal"},
          {"bench", "--len", "32,64", "--samples", "6", "--warm-up", "1", "--max-seconds", "0.1", "--backend",
           "cpu_forward,cpu_standard"},
          {"bench", "--suite", "decode", "--dry-run"},
          {"bench", "--suite", "nosuch"},
          {"bench", "--len", "32", "--dtype", "f32", "--heads", "1", "--max-seconds", "0.05", "--peer",
           "/nowhere/lib_with_a_long_name_of_its_own_which_is_not_there.so:attention"},
          {"bench", "forward bf16 b2 h32/8 q4096 k4096 d128 casual softcap alibi sink paged64 repro=run"},
          {"verify", records},
          {"store", "--db", store},
          {"store", records + ".none", "--db", store},
          {"history", "--db", store},
          {"history", "--db", store, "forward f32 b1 h8 q64 k64 d64 casual"},
          {"tune", records, "--dry-run"},
          {"tune", records, "--between", "cpu_forward,cpu_standard"},
          {"why", line},
          {"compare", records, records, "--all"},
          {"bars", bars, records},
          {"bars", records, records},
          {"report", records, "--out", records + ".html"},
          {"serve", "--help"},
          {"scaling", records},
          {"cost", records, "--prices", prices},
          {"profile", "--run", "forward bf16 b2 h32/8 q4096 k4096 d128 causal", "--device", "cpu"},
          {"profile", "--run", "forward bf16 b2 h32/8 q4096 k4096 d128 casual"},
          {"remote", "list"},
          {"remote", "prices"},
          {"remote", "logs", "a_run_that_is_not_there_and_has_a_long_name_of_its_own_which_does_not_fit_at_all"},
          {"remote", "run", "--on", "nosuch:machine", "--", "bench", "--suite", "decode"},
          {"completion", "--help"}};
}

TEST(Width, no_line_is_wider_than_the_terminal) {
  const std::string attune = ATTUNE_BUILD_DIR "/attune";
  const std::string records = temporary("run.jsonl"), prices = temporary("prices.toml");
  const Ran made = attune_says({"bench", "--len", "32-128*2", "--samples", "6", "--warm-up", "1", "--backend",
                                "cpu_forward,cpu_standard", "--out", records});
  ASSERT_EQ(made.code, 0) << made.err;
  std::vector<Record> all;
  ASSERT_EQ(read_records(records, all).message, "");
  std::ofstream(prices) << "attune-prices 1\noffer\ta cloud with a name that is long\t" << device_of(all[0])
                        << "\t1\t0.5\tUSD\t2026-01-01\n";
  const std::string store = temporary("width.db"), bars = temporary("bars.toml");
  const Ran stored = attune_says({"store", records, "--db", store});
  ASSERT_EQ(stored.code, 0) << stored.err;
  std::ofstream(bars) << "[[bar]]\nname = \"a requirement with a name which says in many words what it wants\"\n"
                         "subject = \"cpu_forward\"\ntflops = 1\n";
  std::set<std::string> covered;
  for (std::vector<std::string> words : commands({records, prices, store, bars})) {
    covered.insert(words[0]);
    words.insert(words.begin(), attune);
    for (const int width : {80, 100, 160}) {
      size_t filled = 0;
      for (const std::string& text : on_terminal(words, width)) {
        EXPECT_LE(display_width(text), size_t(width)) << testing::PrintToString(words) << ": " << text;
        filled += !text.empty();
      }
      EXPECT_GT(filled, 0u) << testing::PrintToString(words);
    }
  }
  // Every command of `attune --help` is covered, and so is its help.
  const std::vector<std::string> help = on_terminal({attune, "--help"}, 80);
  size_t listed = 0;
  for (auto at = std::find(help.begin(), help.end(), "Subcommands:") + 1; at < help.end() && !at->empty(); ++at) {
    if (at->size() < 3 || (*at)[2] == ' ') continue;
    const std::string name = at->substr(2, at->find(' ', 2) - 2);
    ++listed;
    EXPECT_TRUE(covered.count(name)) << name;
    for (const std::string& text : on_terminal({attune, name, "--help"}, 80))
      EXPECT_LE(display_width(text), 80u) << name << ": " << text;
  }
  EXPECT_EQ(listed, covered.size());
}

TEST(Width, json_is_not_broken) {
  const std::string attune = ATTUNE_BUILD_DIR "/attune";
  size_t widest = 0;
  for (const std::string& text : on_terminal({attune, "features", "--device", "cpu", "--json"}, 80))
    widest = std::max(widest, text.size());
  EXPECT_GT(widest, 80u);
}

}  // namespace
}  // namespace attune
